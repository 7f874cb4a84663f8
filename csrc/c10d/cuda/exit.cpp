// The linker has the CUDA runtime within the extension register its clean-up here (--wrap=atexit, CMakeLists.txt), and
// here it ends: at exit it would let go of the GPUs' contexts, of which CUPTI tells torch's profiler, if that has been
// used, after its end ("double free or corruption"). The driver cleans up after processes. Nothing else in the
// extension may use atexit(); destructors of static objects are registered otherwise.
extern "C" int __wrap_atexit(void (*)()) noexcept;  // NOLINT: the linker's name

int __wrap_atexit(void (*)()) noexcept {
  return 0;
}
