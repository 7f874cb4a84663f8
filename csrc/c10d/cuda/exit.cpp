// Keeps the CUDA runtime's clean-up from running at exit. The linker redirects the extension's calls of atexit to this
// function (--wrap=atexit, CMakeLists.txt), which ignores them. The clean-up would release the GPUs' contexts. If
// torch's profiler was used, CUPTI would report that to it after the profiler's end ("double free or corruption"). The
// driver cleans up after processes. Nothing else in the extension may use atexit(); destructors of static objects are
// registered otherwise.
extern "C" int __wrap_atexit(void (*)()) noexcept;  // NOLINT: the linker's name

int __wrap_atexit(void (*)()) noexcept {
  return 0;
}
