// How the examples' processes find each other: the server writes its address to a file that only its user can read. A
// process that can read the address can connect.
#pragma once

#include <axon/axon.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

[[noreturn]] inline void give_up(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(1);
}

inline void check(const axon::Status& status) {
  if (!status.ok()) give_up(status.message());
}

template <typename T>
T checked(axon::Result<T> result) {
  if (!result.ok()) give_up(result.status().message());
  return std::move(result).value();
}

inline void leave_address(axon::Runtime& runtime, const std::string& file) {
  const std::vector<std::byte> address = checked(runtime.address());
  const std::string unfinished = file + ".part";
  std::ofstream(unfinished, std::ios::binary).flush();
  std::filesystem::permissions(unfinished, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  std::ofstream(unfinished, std::ios::binary).write(reinterpret_cast<const char*>(address.data()), address.size());
  std::filesystem::rename(unfinished, file);  // the file is complete or absent
}

inline axon::Peer connect_to(axon::Runtime& runtime, const std::string& file) {
  using namespace std::chrono_literals;
  for (int i = 0; i < 100 && !std::filesystem::exists(file); ++i) std::this_thread::sleep_for(100ms);
  std::ifstream stream(file, std::ios::binary);
  const std::string address{std::istreambuf_iterator<char>(stream), {}};
  if (address.empty()) give_up("no server has left an address in " + file);
  return checked(runtime.connect(std::as_bytes(std::span(address)), 10s));
}
