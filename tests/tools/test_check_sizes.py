from pathlib import Path

import check_sizes
import pytest
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
