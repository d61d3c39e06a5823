"""Configuration: what is read, laid over and written, and the message that each mistake gets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dapl
from dapl.common.errors import DaplError, nearest
from dapl.common.files import expand_path
from dapl.config import (
    CubData,
    DaplModel,
    FitStage,
    JointStage,
    LastLayerStage,
    ProjectStage,
    ToyBirdsData,
    WarmUpStage,
    describe_fields,
    dump_config,
    load_config,
    parse_config,
    read_yaml,
)

CONFIGS = Path(__file__).parents[2] / "configs"


def message_of(text: str, tmp_path: Path, overrides: dict[str, Any] | None = None) -> str:
    """What a file with this text is refused with, less the name of the file."""
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DaplError) as caught:
        load_config(path, overrides)
    message = str(caught.value)
    assert all(line.startswith(f"{path}:") for line in message.splitlines())
    return message.replace(f"{path}: ", "")


# --- reading and writing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["cub20/protopnet", "cub20/protopnet-frozen", "cub200/protopnet", "cub200-inat/protopnet"]
)
def test_protopnet_is_trained_as_it_was_best_on_validation(name: str) -> None:
    """Without weight decay on the add-on: 63.3 %, and 46.7 % with it."""
    stages = [stage for stage in load_config(CONFIGS / f"{name}.yaml").schedule if isinstance(stage, FitStage)]
    assert stages
    assert all(stage.weight_decay.get("addon", 0.0) == 0.0 for stage in stages)


def test_comments_of_the_widths_are_true() -> None:
    default = load_config(CONFIGS / "cub20.yaml").model.head_dim  # type: ignore[union-attr]
    for path in sorted((CONFIGS / "cub20").glob("dapl-[0-9]*.yaml")):
        width = load_config(path).model.head_dim  # type: ignore[union-attr]
        assert ("another width" in path.read_text(encoding="utf-8")) == (width != default), path.name


def test_every_config_can_be_read() -> None:
    files = [path for path in CONFIGS.rglob("*.yaml") if path.parent.name not in ("sweeps", "bases")]
    assert len(files) > 30
    for path in files:
        load_config(path)


def test_the_table_of_all_of_cub_is_complete_on_both_kinds_of_features() -> None:
    """Each config on features of birds differs from its namesake in the backbone alone; parts in how it locates too."""
    baselines = {"blackbox", "protopnet", "protopnet-cosine", "protopshare", "pixpnet"}
    ours = {"dapl-8", "dapl-16", "dapl-32", "dapl-cosine", "dapl-fg", "parts"}
    files = sorted((CONFIGS / "cub200-inat").glob("*.yaml"))
    assert {path.stem for path in files} >= baselines | ours
    for path in files:
        birds, plain = load_config(path), load_config(CONFIGS / "cub200" / path.name)
        assert (birds.model.backbone.name, birds.model.backbone.weights) == ("mobilenetv2_100", "inat_birds")
        backbone = birds.model.backbone.model_copy(update={"name": plain.model.backbone.name, "weights": "auto"})
        changed = {"model": birds.model.model_copy(update={"backbone": backbone})}
        if path.stem in ("parts", "parts-blur"):  # how they locate was chosen on these features
            changed["model"] = changed["model"].model_copy(update={"magnify": 1.0})
            changed["loss"] = birds.loss.model_copy(update={"locate": plain.loss.locate})
            assert birds.schedule[-1].stage == "weigh_heads"
            changed["schedule"] = [plain.schedule[0], *birds.schedule[1:-1]]
        assert birds.model_copy(update=changed) == plain, path.stem
        boxes = load_config(path, {"data.crop": "box"})
        assert boxes.data.crop == "box"  # type: ignore[union-attr]
        assert boxes.model_copy(update={"data": birds.data}) == birds


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("")
    config = load_config(tmp_path / "run.yaml")
    assert load_config(str(tmp_path / "run.yaml")) == config
    assert config == load_config() == parse_config({})
    assert isinstance(config.data, ToyBirdsData)
    assert isinstance(config.model, DaplModel)
    assert (config.model.heads, config.model.head_dim, config.model.epsilon) == (10, 16, 1e-4)
    assert (config.loss.cluster, config.loss.separation, config.loss.contrast.weight) == (0.8, 0.08, 0.5)
    assert [stage.stage for stage in config.schedule] == ["warm_up", "joint", "project", "last_layer"]


def test_round_trip(tmp_path: Path) -> None:
    config = parse_config(
        {
            "seed": 3,
            "data": {"name": "cub", "root": "~/birds", "classes": ["001.Black_footed_Albatross", 7], "crop": "box"},
            "model": {"heads": 4, "backbone": {"name": "densenet161", "stages": [-2, -1], "weights": "hub"}},
            "loss": {"contrast": {"positives": "all"}, "foreground": {"weight": 10}, "spatial": {"weight": 1e-3}},
            "schedule": [
                {"stage": "warm_up", "learning_rates": {"addon": 1e-3}, "decay": "cosine", "augment": "flip"},
                {"stage": "joint", "weight_decay": {}},
                {"stage": "project", "foreground_share": None},
                {"stage": "prune", "bias_of": "map"},
                {"stage": "last_layer", "l1": 0},
            ],
            "runtime": {"devices": 2, "workers": 0},
        }
    )
    path = tmp_path / "dumped.yaml"
    path.write_text(dump_config(config), encoding="utf-8")
    assert load_config(path) == config
    assert read_yaml(path) == config.model_dump(mode="json")  # every field written out
    assert dump_config(load_config(path)) == dump_config(config)


def test_numbers_as_people_write_them(tmp_path: Path) -> None:
    """YAML reads 1e-3 as a text."""
    (tmp_path / "run.yaml").write_text("schedule: [{stage: last_layer, learning_rate: 1e-3}]")
    stage = load_config(tmp_path / "run.yaml").schedule[0]
    assert isinstance(stage, LastLayerStage)
    assert stage.learning_rate == 0.001


def test_what_is_laid_over_stays_as_it_was() -> None:
    fields = {"data": {"name": "toybirds"}, "data.classes": 3}
    assert load_config(None, fields) == load_config(None, fields)
    assert fields == {"data": {"name": "toybirds"}, "data.classes": 3}


def test_values_do_not_change_after_they_were_checked() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_config().seed = 3  # type: ignore[misc]


def test_the_demo_s_config_is_valid() -> None:
    load_config(Path(dapl.__file__).with_name("demo.yaml"))


# --- configs laid over others -----------------------------------------------------------------------------------


def test_a_config_is_laid_over_its_base(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "common.yaml").write_text(
        "seed: 3\nmodel: {heads: 5, head_dim: 32, backbone: {stages: [-2, -1], weights: random}}\n"
        "schedule: [{stage: joint}]"
    )
    (tmp_path / "other.yaml").write_text("model: {head_dim: 8}\nloss: {cluster: 0.1}")
    (tmp_path / "sub" / "middle.yaml").write_text("base: ../common.yaml\nmodel: {backbone: {balance: true}}")
    file = tmp_path / "sub" / "run.yaml"
    file.write_text(
        "base: [middle.yaml, ../other.yaml]\nmodel: {backbone: {stages: [-1]}}\nschedule: [{stage: warm_up}]"
    )
    config = load_config(file, {"loss.separation": 0})
    assert (config.seed, config.model.heads, config.model.head_dim) == (3, 5, 8)  # type: ignore[union-attr]
    assert (config.model.backbone.weights, config.model.backbone.balance) == ("random", True)
    assert config.model.backbone.stages == [-1]  # a list is replaced
    assert [stage.stage for stage in config.schedule] == ["warm_up"]
    assert (config.loss.cluster, config.loss.separation) == (0.1, 0)
    assert "base" not in dump_config(config)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "base: ../nowhere.yaml",
            "base: no such file ../nowhere.yaml; paths are relative to the folder of this config.",
        ),
        ("base: 3", "base: is the path of a config or a list of paths, this is 3."),
        ("base: run.yaml", "base: run.yaml leads back to itself; a config cannot be its own base."),
        ("base: twin.yaml", "base: ./run.yaml leads back to itself; a config cannot be its own base."),
    ],
)
def test_bases_that_are_none(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(text)
    (tmp_path / "twin.yaml").write_text("base: ./run.yaml")
    with pytest.raises(DaplError) as caught:
        load_config(tmp_path / "run.yaml")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


# --- overrides --------------------------------------------------------------------------------------------------


def test_overrides_are_laid_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("model: {heads: 5, head_dim: 32}\nschedule: [{stage: warm_up}, {stage: project}]\n")
    overrides = {"model.head_dim": 8, "seed": 4, "loss.contrast.margin": 2.0, "schedule.0.epochs": 3}
    config = load_config(path, overrides)
    assert (config.model.heads, config.model.head_dim) == (5, 8)
    assert (config.seed, config.loss.contrast.margin) == (4, 2.0)
    assert isinstance(config.schedule[0], WarmUpStage)
    assert config.schedule[0].epochs == 3
    assert isinstance(config.schedule[1], ProjectStage)


def test_overrides_of_the_default_schedule() -> None:
    config = load_config(overrides={"schedule.1.epochs": 2, "schedule.1.learning_rates.backbone": 1e-5})
    assert len(config.schedule) == 4
    assert isinstance(config.schedule[1], JointStage)
    assert config.schedule[1].epochs == 2
    assert config.schedule[1].learning_rates["backbone"] == 1e-5
    assert config.schedule[1].learning_rates["addon"] == 3e-3


def test_overrides_of_whole_values() -> None:
    config = load_config(overrides={"data": {"name": "cub"}, "data.classes": 10, "schedule": [{"stage": "project"}]})
    assert isinstance(config.data, CubData)
    assert config.data.classes == 10
    assert len(config.schedule) == 1
    config = load_config(overrides={"schedule.0": {"stage": "project"}})
    assert isinstance(config.schedule[0], ProjectStage)


@pytest.mark.parametrize(
    ("dotted", "message"),
    [
        ("schedule.9.epochs", "--schedule.9.epochs: '9' is no item of the list; it has 4, counted from 0."),
        ("schedule.last.epochs", "--schedule.last.epochs: 'last' is no item of the list; it has 4, counted from 0."),
        ("schedule.4", "--schedule.4: '4' is no item of the list; it has 4, counted from 0."),
        ("schedule.0.epohcs", "config: unknown field 'schedule.0.epohcs'; did you mean 'epochs'?"),
        ("model.haed_dim", "config: unknown field 'model.haed_dim'; did you mean 'head_dim'?"),
        ("model.backbone.stages.0.x", "config: field 'model.backbone.stages': input should be a valid list"),
    ],
)
def test_overrides_that_do_not_fit(dotted: str, message: str) -> None:
    with pytest.raises(DaplError) as caught:
        load_config(overrides={dotted: 1})
    assert str(caught.value).startswith(message)


def test_override_below_a_single_value(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("model: {backbone: {stages: [-1]}}")
    with pytest.raises(DaplError, match=r"model\.backbone\.stages\.0 is a single value and has no fields"):
        load_config(tmp_path / "run.yaml", {"model.backbone.stages.0.x": 1})


# --- unknown fields ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sead: 1", "unknown field 'sead'; did you mean 'seed'?"),
        ("data: {name: toybirds, imagesize: 3}", "unknown field 'data.imagesize'; did you mean 'image_size'?"),
        ("data: {name: cub, rot: x}", "unknown field 'data.rot'; did you mean 'root'?"),
        ("model: {hedas: 3}", "unknown field 'model.hedas'; did you mean 'heads'?"),
        ("model: {backbone: {wieghts: x}}", "unknown field 'model.backbone.wieghts'; did you mean 'weights'?"),
        ("loss: {clusster: 1}", "unknown field 'loss.clusster'; did you mean 'cluster'?"),
        ("loss: {contrast: {margn: 1}}", "unknown field 'loss.contrast.margn'; did you mean 'margin'?"),
        ("loss: {foreground: {treshold: 1}}", "unknown field 'loss.foreground.treshold'; did you mean 'threshold'?"),
        ("loss: {spatial: {sharp: 1}}", "unknown field 'loss.spatial.sharp'; did you mean 'sharpness'?"),
        ("schedule: [{stage: warm_up, epoch: 3}]", "unknown field 'schedule.0.epoch'; did you mean 'epochs'?"),
        ("schedule: [{stage: joint, decay_epoch: 3}]", "unknown field 'schedule.0.decay_epoch'; did you mean 'decay_"),
        (
            "schedule: [{stage: joint}, {stage: project, foreground: 1}]",
            "unknown field 'schedule.1.foreground'; did you mean 'foreground_share'?",
        ),
        ("schedule: [{stage: last_layer, L1: 3}]", "unknown field 'schedule.0.L1'; did you mean 'l1'?"),
        ("schedule: [{stage: prune, treshold: 3}]", "unknown field 'schedule.0.treshold'; did you mean 'threshold'?"),
        ("cache: {foldr: x}", "unknown field 'cache.foldr'; did you mean 'folder'?"),
        ("runtime: {device: 2}", "unknown field 'runtime.device'; did you mean 'devices'?"),
        # the names of kinds are no fields either, and must not vanish from the message
        ("cub: 1", "unknown field 'cub'; known: seed, start, data, model, loss, schedule, cache, runtime."),
        (
            "loss: {joint: 1}",
            "unknown field 'loss.joint'; known: cluster, cluster_of, separation, contrast, foreground, spatial, ",
        ),
        ("model: {dapl: 1}", "unknown field 'model.dapl'; "),
        ("data: {name: cub, cub: 1}", "unknown field 'data.cub'; "),
        ("schedule: [{stage: project, project: 1}]", "unknown field 'schedule.0.project'; "),
    ],
)
def test_unknown_field_gets_the_nearest(text: str, message: str, tmp_path: Path) -> None:
    assert message_of(text, tmp_path).startswith(message)


def test_every_mistake_has_its_line(tmp_path: Path) -> None:
    lines = message_of("sead: 1\nmodel: {heads: 0, hedas: 3}", tmp_path).splitlines()
    assert len(lines) == 3


def test_nearest() -> None:
    assert nearest("backbon", ("backbone", "addon")) == "; did you mean 'backbone'?"
    assert nearest("x", ("backbone", "addon")) == "; known: backbone, addon."


# --- bad values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: birds", "field 'seed': input should be a valid integer, unable to parse string as an integer"),
        ("seed: -1", "field 'seed': input should be greater than or equal to 0 (got -1)."),
        ("seed: 1.5", "field 'seed': input should be a valid integer, got a number with a fractional part (got 1.5)."),
        ("model: 3", "field 'model': input should be a valid dictionary"),
        ("model: {heads: 0}", "field 'model.heads': input should be greater than or equal to 1 (got 0)."),
        ("model: {epsilon: .nan}", "field 'model.epsilon': "),
        ("model: {patch: 2}", "field 'model.patch': prototypes of more than 1×1 patches are not built"),
        ("model: {backbone: {stages: []}}", "field 'model.backbone.stages': list should have at least 1 item"),
        ("loss: {contrast: {positives: some}}", "field 'loss.contrast.positives': input should be 'class' or 'all'"),
        ("loss: {foreground: {threshold: 1.5}}", "field 'loss.foreground.threshold': input should be less than or eq"),
        ("data: {name: toybirds, classes: 1}", "field 'data.classes': input should be greater than or equal to 2"),
        ("schedule: []", "field 'schedule': list should have at least 1 item"),
        ("schedule: {stage: joint}", "field 'schedule': input should be a valid list"),
        ("schedule: [joint]", "field 'schedule.0': input should be a valid dictionary"),
        ("schedule: [{stage: joint, epochs: no}]", "field 'schedule.0.epochs': input should be greater than or equal"),
        ("schedule: [{stage: joint, learning_rates: {addon: -1}}]", "field 'schedule.0.learning_rates.addon': input"),
        ("schedule: [{stage: joint, weight_decay: {addon: x}}]", "field 'schedule.0.weight_decay.addon': input should"),
        ("1: 2", "field '1': keys should be strings"),
        ("data: {name: cubb}", "field 'data.name': 'cubb' is not known; did you mean 'cub'?"),
        ("data: {name: mnist}", "field 'data.name': 'mnist' is not known; known: toybirds, cub, "),
        ("data: {classes: 3}", "field 'data.name' is missing; it says which kind this is."),
        ("schedule: [{stage: warmup}]", "field 'schedule.0.stage': 'warmup' is not known; did you mean 'warm_up'?"),
        ("schedule: [{stage: joint}, {epochs: 3}]", "field 'schedule.1.stage' is missing; it says which kind this is."),
        ("model: {system: dalp}", "field 'model.system': 'dalp' is not known; did you mean 'dapl'?"),
    ],
)
def test_bad_values(text: str, message: str, tmp_path: Path) -> None:
    assert message_of(text, tmp_path).startswith(message)


@pytest.mark.parametrize("field", ["learning_rates", "weight_decay"])
def test_unknown_part(field: str, tmp_path: Path) -> None:
    text = f"schedule: [{{stage: project}}, {{stage: joint, {field}: {{backbon: 1}}}}]"
    expected = "schedule.1: no model has a part 'backbon'; did you mean 'backbone'?"
    assert message_of(text, tmp_path) == expected


def test_a_stage_that_learns_nothing(tmp_path: Path) -> None:
    message = message_of("schedule: [{stage: joint, learning_rates: {}}]", tmp_path)
    assert message == "schedule.0: no part has a learning rate, so nothing would be learned."


# --- bad files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [("seed: 1\nmodel: {heads: 3\nloss: {}\n", 3), ("seed: 1\n\tmodel: 2\n", 2), ("a: [b", 1)],
)
def test_not_yaml(text: str, line: int, tmp_path: Path) -> None:
    assert f"line {line} is not YAML (" in message_of(text, tmp_path)


def test_not_text(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DaplError, match=r"run\.yaml: not text in UTF-8"):
        load_config(tmp_path / "run.yaml")


@pytest.mark.parametrize(("text", "kind"), [("- 1", "list"), ("birds", "str"), ("3", "int")])
def test_not_a_mapping(text: str, kind: str, tmp_path: Path) -> None:
    assert message_of(text, tmp_path) == f"a config is a mapping of fields, this file holds a {kind}."


def test_yaml_cannot_make_objects(tmp_path: Path) -> None:
    message = message_of(f"seed: !!python/object/apply:pathlib.Path.touch [{tmp_path / 'ran'}]", tmp_path)
    assert "is not YAML" in message
    assert not (tmp_path / "ran").exists()


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(DaplError, match=r"none\.yaml: no such file; give a YAML config"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(DaplError, match="is a folder and not a file; give a YAML config"):
        load_config(tmp_path)


# --- paths, descriptions, imports -------------------------------------------------------------------------------


def test_expand_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIRDS", "/data/birds")
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("DAPL_CUB", raising=False)
    assert expand_path("$BIRDS/cub", "data.root") == Path("/data/birds/cub")
    assert expand_path("${BIRDS}", "data.root") == Path("/data/birds")
    assert expand_path("~/cub", "data.root") == Path("/home/someone/cub")
    for value in ("$DAPL_CUB", "$DAPL_CUB/images", "/a/${DAPL_CUB}/b"):
        with pytest.raises(
            DaplError, match=r"^data\.root: the environment variable DAPL_CUB is not set; .*--data\.root"
        ):
            expand_path(value, "data.root")


def test_every_field_is_described() -> None:
    described = list(describe_fields())
    names = [name for name, _, _ in described]
    sections = {"seed", "data.root", "model.head_dim", "model.backbone.stages", "loss.contrast.margin", "cache.folder"}
    kinds = {"data (cub)", "schedule (warm_up)", "schedule.<n>.epochs", "schedule.<n>.foreground_share"}
    assert sections | kinds <= set(names)
    for name, _, text in described:
        assert text.strip(), name
        fixed = name.rsplit(".", 1)[-1] in ("name", "system", "stage")
        assert fixed or not text.startswith("one of"), f"{name} has no description of its own"
    assert {name: default for name, default, _ in described}["loss.separation"] == "0.08"


@pytest.mark.parametrize("module", ["dapl.config", "dapl.cli"])
def test_no_torch_for_help(module: str) -> None:
    """`dapl --help` answers in under a second because of this."""
    code = (
        f"import sys, {module}\n"
        "from dapl.config import describe_fields\n"
        "list(describe_fields())\n"
        "print([name for name in ('torch', 'torchvision', 'timm', 'matplotlib', 'numpy') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "[]"
