"""`dapl evaluate`: what it prints, and what bad options get."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dapl.cli import main


def test_prints_a_table_and_says_where_the_files_are(run: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["evaluate", str(run), "--metrics", "accuracy,coverage,diversity", "--part-mode", "disc"]
    assert main([*arguments, "--tau", "0.3", "--radius", "0.1", "--radius-of", "image", "--percentile", "90"]) == 0
    text = capsys.readouterr().out
    for line in ("accuracy", "Coverage", "  precision", "  recall", "Diversity", "  redundancy", "  imbalance"):
        assert any(printed.startswith(line) for printed in text.splitlines()), line
    assert "percentile 90, τ 0.3, parts disc of radius 0.1 × the side, scope image" in text
    assert str(run / "metrics.json") in text
    protocol = json.loads((run / "metrics.json").read_text())["protocol"]
    assert (protocol["tau"], protocol["radius"], protocol["radius_of"]) == (0.3, 0.1, "image")


def test_another_split(run: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["evaluate", str(run), "--split", "validation", "--metrics", "accuracy"]) == 0
    assert "toybirds, validation: 3 images" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tau", "1.5"], "tau must lie strictly between 0 and 1, but is 1.5."),
        (["--tau", "0"], "tau must lie strictly between 0 and 1, but is 0."),
        (["--percentile", "100"], "percentile must lie strictly between 0 and 100"),
        (["--metrics", "covrage"], "metrics: 'covrage' is not known; did you mean 'coverage'?"),
        (["--split", "tset"], "split: 'tset' is not known; did you mean 'test'?"),
        (["--part-mode", "dics"], "part_mode: 'dics' is not known; did you mean 'disc'?"),
        (["--scope", "bird"], "scope: 'bird' is not known"),
        (["--radius", "-2"], "radius must be above 0"),
        (["--model.heads", "3"], "dapl evaluate takes only fields of"),
    ],
)
def test_bad_options_end_with_code_2_and_one_sentence(
    options: list[str], message: str, trained: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["evaluate", str(trained), *options]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.out == ""
    assert not (trained / "metrics.json").exists()


def test_a_number_that_is_none_ends_with_code_2(trained: Path):
    with pytest.raises(SystemExit) as stopped:
        main(["evaluate", str(trained), "--tau", "much"])
    assert stopped.value.code == 2


def test_a_folder_that_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["evaluate", str(tmp_path)]) == 2
    assert "not a run directory" in capsys.readouterr().err


def test_help_imports_no_torch():
    code = (
        "import sys\nfrom dapl.cli import main\n"
        "try:\n    main(['evaluate', '--help'])\nexcept SystemExit:\n    print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("False")
    assert "--part-mode" in done.stdout
