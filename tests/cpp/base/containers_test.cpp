#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>

#include "base/intrusive_list.hpp"
#include "base/size_class_pool.hpp"
#include "base/status.hpp"

namespace axon {
namespace {

struct First;
struct Second;
struct Element : ListNode<Element, First>, ListNode<Element, Second> {
  explicit Element(int number) : value(number) {}
  int value;
};

TEST(IntrusiveList, keeps_order_and_forgets_unlinked_elements) {
  Element one(1), two(2), three(3);
  IntrusiveList<Element, First> list;
  list.push_back(two);
  list.push_back(three);
  list.push_front(one);
  static_cast<ListNode<Element, First>&>(two).unlink();
  EXPECT_EQ(list.front()->value, 1);
  EXPECT_EQ(list.next(one)->value, 3);
  EXPECT_EQ(list.next(three), nullptr);
  EXPECT_EQ(list.pop_front()->value, 1);
  EXPECT_EQ(list.pop_front()->value, 3);
  EXPECT_TRUE(list.empty());
  EXPECT_EQ(list.pop_front(), nullptr);
}

TEST(IntrusiveList, element_is_in_two_lists_at_once) {
  Element one(1), two(2);
  IntrusiveList<Element, First> first;
  IntrusiveList<Element, Second> second;
  for (Element* element : {&one, &two}) {
    first.push_back(*element);
    second.push_back(*element);
  }
  static_cast<ListNode<Element, First>&>(one).unlink();
  EXPECT_EQ(first.front()->value, 2);
  EXPECT_EQ(second.front()->value, 1);
  EXPECT_EQ(second.find([](const Element& element) { return element.value == 2; }), &two);
  EXPECT_EQ(first.find([](const Element& element) { return element.value == 1; }), nullptr);
}

TEST(SizeClassPool, gives_a_released_allocation_again_for_its_class_only) {
  SizeClassPool pool;
  void* allocation = pool.allocate(100);
  pool.release(allocation, 100);
  void* larger = pool.allocate(129);
  EXPECT_NE(larger, allocation);
  EXPECT_EQ(pool.allocate(65), allocation);  // 65 … 128 bytes are one class
  pool.release(allocation, 128);
  pool.release(larger, 200);
}

TEST(SizeClassPool, allocations_are_aligned_apart_and_may_be_large) {
  SizeClassPool pool;
  const std::array<size_t, 5> sizes{1, 64, 65, SizeClassPool::kLargestAllocation, size_t{1} << 20};
  std::set<void*> allocations;
  for (const size_t num_bytes : sizes) {
    void* allocation = pool.allocate(num_bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(allocation) % 64, 0u);
    static_cast<char*>(allocation)[num_bytes - 1] = 1;
    allocations.insert(allocation);
    pool.release(allocation, num_bytes);
  }
  EXPECT_EQ(allocations.size(), 4u);  // the second allocation reuses the first
}

TEST(Status, carries_code_and_text_and_clones) {
  const Status failure(ErrorCode::kTimeout, "late");
  EXPECT_TRUE(Status().ok());
  EXPECT_FALSE(failure.ok());
  EXPECT_EQ(failure.clone().code(), ErrorCode::kTimeout);
  EXPECT_EQ(failure.clone().message(), "late");
  EXPECT_TRUE(Status().clone().ok());
}

TEST(Result, holds_value_or_failure) {
  Result<int> value = 7;
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(value.value(), 7);
  Result<int> failure = Status(ErrorCode::kInternal, "no");
  ASSERT_FALSE(failure.ok());
  EXPECT_EQ(failure.status().message(), "no");
}

}  // namespace
}  // namespace axon
