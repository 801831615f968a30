"""What discover says of this machine."""

from __future__ import annotations

from pathlib import Path

from sbatchgen.lab.discover.slurm_answers import conda_roots, fast_interfaces, modules, programs


def interface(folder: Path, name: str, **files: str) -> None:
    (folder / name).mkdir()
    for key, text in files.items():
        (folder / name / key).write_text(text + "\n")


def test_interfaces_between_nodes(tmp_path: Path) -> None:
    interface(tmp_path, "lo", type="772")
    interface(tmp_path, "eth0", type="1", speed="1000", operstate="up")
    interface(tmp_path, "ens5", type="1", speed="100000", operstate="up")
    interface(tmp_path, "ens6", type="1", speed="100000", operstate="down")
    interface(tmp_path, "ens7", type="1", speed="-1", operstate="up")
    interface(tmp_path, "mlx", type="32", operstate="down")
    interface(tmp_path, "hsn0", type="1")
    interface(tmp_path, "docker0", type="1", speed="100000", operstate="up")
    assert fast_interfaces(tmp_path) == ["ens5", "hsn0", "mlx"]
    assert fast_interfaces(tmp_path / "none") == []


def test_programs_conda_and_modules(tmp_path: Path) -> None:
    for name in ("apptainer", "conda"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).touch(0o755)
    environment = {"PATH": f"{tmp_path / 'bin'}", "LMOD_VERSION": "8.7"}
    assert dict(programs(environment)) == {
        "apptainer": str(tmp_path / "bin/apptainer"),
        "singularity": "",
        "enroot": "",
    }
    assert str(tmp_path) in conda_roots(environment)
    assert modules(environment) == "Lmod 8.7"
    assert modules({"MODULESHOME": "/usr/share/modules"}) == "environment modules"
    assert modules({}) == ""
