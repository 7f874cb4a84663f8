from pathlib import Path

import check_sizes
import pytest
from classes import Class, cpp_classes, python_classes
from functions import Function, cpp_functions, python_functions

CPP = """\
// void hidden() {
#define LOOP(x) do { (x); } while (false)
namespace axon {
struct alignas(64) Slot {
  Slot(int size) : size_{size} {}
  int size_{0};
};
constexpr const char* kText[] = {"} {", R"(})"};
template <typename T>
Status Ring::run(Exchange& exchange,
                 int root) noexcept {
  auto step = [&](int at) { return at + 1; };
  if (step(root) > 1) {
    return Status();
  }
}
TEST(Ring, ends) { EXPECT_TRUE(true); }
}  // namespace axon
"""


def test_cpp_functions_are_found_with_their_lengths() -> None:
    assert list(cpp_functions(CPP)) == [Function("Slot", 5, 1), Function("Ring::run", 9, 8), Function("TEST", 17, 1)]


def test_braces_in_arguments_do_not_end_a_statement() -> None:
    text = "A::A(B b) : b_({}), c_(b) {\n  d_ = {b};\n}\nvoid f(int a, B b = {}) {}\n"
    assert list(cpp_functions(text)) == [Function("A::A", 1, 3), Function("f", 4, 1)]


def test_python_functions_are_found_with_their_lengths() -> None:
    assert list(python_functions("class A:\n    def f(self):\n        return 1\n")) == [Function("f", 2, 2)]


CPP_CLASSES = """\
namespace axon {
// Sends
// messages.
template <typename T>
  requires(sizeof(T) > 1)
class [[nodiscard]] Sender final : public Listener<void(T)> {
 public:
  explicit Sender(int size) : size_{size}, start_({1}), end_(size) { open(size); }
  ~Sender() override;
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = default;
  static Sender make() { return Sender({1}); }
  struct Part {
    void one();
  };
  // Comments do not count: void none();
  bool start(const Part& part, Options options = {}) noexcept;
  bool start(std::function<void(int)> action) const {
    if (action) run();
    return true;
  }
  operator bool() const noexcept { return true; }

 private:
  friend void swap(Sender& a, Sender& b) { a.swap(b); }
  virtual std::pair<int (*)(int), T> run() = 0;
  static_assert(sizeof(T) > 1);
  std::function<void(int)> action_;
  int (*call_)(int) = nullptr;
  alignas(64) std::atomic<int> size_{default_size()};
  int start_ = start_of(1);
};
enum class Kind { kNone };
struct Queue::State {
  State();
};
}  // namespace axon
"""


def test_cpp_classes_are_found_with_their_methods() -> None:
    sender = Class("Sender", 4, 4, "Sends messages.")
    assert list(cpp_classes(CPP_CLASSES)) == [Class("Part", 13, 1, ""), sender, Class("Queue::State", 34, 0, "")]


PYTHON_CLASS = """\
# Above.
@decorated
class A:
    \"""Within.\"""

    size: int = 1

    def __init__(self): ...
    def f(self): ...
    async def _g(self): ...
    @property
    def h(self):
        def local(): ...
"""


def test_python_classes_are_found_with_their_methods() -> None:
    assert list(python_classes(PYTHON_CLASS)) == [Class("A", 3, 3, "Above. Within.")]


def body(num_lines: int) -> str:
    return "void f() {\n" + "  g();\n" * (num_lines - 2) + "}\n"


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (body(70), []),
        (body(71), ["csrc/f.cpp:1: f has 71 lines, at most 70 allowed"]),
        ("\n" * 500, []),
        ("\n" * 501, ["csrc/f.cpp: 501 lines, at most 500 allowed"]),
    ],
)
def test_only_what_is_too_big_is_reported(tmp_path: Path, text: str, problems: list[str]) -> None:
    source = tmp_path / "csrc" / "f.cpp"
    source.parent.mkdir()
    source.write_text(text)
    assert list(check_sizes.too_big(check_sizes.sources(tmp_path, ["csrc"]))) == problems


ADVICE = "move some into a class of their own, or write directly above it: More than 30 methods: <reason>."


def cpp_class(num_methods: int) -> str:
    return "struct A {\n" + "  void f();\n" * num_methods + "};\n"


def python_class(num_methods: int) -> str:
    return "class A:\n" + "".join(f"    def f{each}(self): ...\n" for each in range(num_methods))


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.hpp", cpp_class(30), None),
        ("a.hpp", cpp_class(31), 1),
        ("a.hpp", "// Does.\n// More than 30 methods: a base\n// declares them.\n" + cpp_class(31), None),
        ("a.hpp", "// More than 30 methods: a base declares them.\n\n" + cpp_class(31), 3),
        ("a.hpp", "// More than 30 methods: .\n" + cpp_class(31), 2),
        ("a.py", python_class(30), None),
        ("a.py", python_class(31), 1),
        ("a.py", "# More than 30 methods: they are a table.\n" + python_class(31), None),
        ("a.py", python_class(31).replace(":", ':\n    """More than 30 methods: they are a table."""', 1), None),
    ],
)
def test_a_class_of_many_methods_needs_a_reason(tmp_path: Path, name: str, text: str, line: int | None) -> None:
    (tmp_path / name).write_text(text)
    problem = f"{name}:{line}: A has 31 methods, at most 30 allowed: {ADVICE}"
    assert list(check_sizes.too_big(check_sizes.sources(tmp_path, [name]))) == ([problem] if line else [])


def test_the_report_lists_the_five_classes_with_the_most_methods(tmp_path: Path) -> None:
    for number in range(1, 7):
        (tmp_path / f"{number}.hpp").write_text(cpp_class(number))
    files = check_sizes.sources(tmp_path, ["."])
    listed = check_sizes.report(files, files, []).partition("classes with the most methods:\n")[2]
    assert listed.split() == [word for number in range(6, 1, -1) for word in (str(number), f"{number}.hpp:1", "A")]
