from pathlib import Path

import check_names

METER = "namespace axon {{\n\n{forward}struct Meter {{\n  int value;\n}};\n\n}}  // namespace axon\n"


def headers(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (folder / f"{name}.hpp").write_text(text)
    return folder


def test_a_type_of_two_headers_is_found(tmp_path: Path) -> None:
    csrc = headers(tmp_path, first=METER.format(forward=""), second=METER.format(forward=""))
    (found,) = check_names.duplicates(csrc)
    assert found.startswith(f"axon::Meter is defined in {tmp_path}/first.hpp:3 and {tmp_path}/second.hpp:3")


def test_aliases_and_one_line_types_count(tmp_path: Path) -> None:
    texts = {
        "first": "namespace axon::ipc {\nenum class Kind : int { kOne };\nusing Number = int;\n}  // namespace\n",
        "second": "namespace axon::ipc {\nusing Kind = int;\nstruct Number {};\n}  // namespace\n",
    }
    assert [line.split()[0] for line in check_names.duplicates(headers(tmp_path, **texts))] == [
        "axon::ipc::Kind",
        "axon::ipc::Number",
    ]


def test_namespaces_and_forward_declarations_set_names_apart(tmp_path: Path) -> None:
    other = METER.format(forward="").replace("axon", "axon::rpc")
    user = "namespace axon {\nstruct Meter;\nclass Reader {\n  struct Meter {};\n};\n}  // namespace axon\n"
    assert not list(check_names.duplicates(headers(tmp_path, a=METER.format(forward=""), b=other, c=user)))


def test_a_module_that_tests_import_has_one_file(tmp_path: Path) -> None:
    for folder in ("tests/first", "tests/second", "benchmarks/package"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "compare.py").touch()
        (tmp_path / folder / "run.py").touch()  # which no test imports
    (tmp_path / "benchmarks/package/__init__.py").touch()
    (tmp_path / "tests/first/test_it.py").write_text("import sys\n\nimport compare\n")
    (found,) = check_names.shadowed_modules(tmp_path)
    assert found.startswith(
        f"module compare is {tmp_path}/tests/first/compare.py and {tmp_path}/tests/second/compare.py"
    )
