"""Configuration of the systems: which stages suit which, what is shared, how each starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from dapl.config import (
    DaplModel,
    JointStage,
    MergeStage,
    PixPNetModel,
    ProtoPNetModel,
    ProtoPShareModel,
    PurePruneStage,
    dump_config,
    load_config,
    parse_config,
)

from .test_config import message_of


@pytest.mark.parametrize(
    ("system", "stage", "why"),
    [
        ("pixpnet", "last_layer", "the logits of PixPNet are plain sums, so it has no last layer; leave out"),
        ("blackbox", "project", "a black box has no prototypes; leave out the stage project."),
        ("blackbox", "prune", "a black box has no prototypes; leave out the stage prune."),
        ("blackbox", "prune_impure", "a black box has no prototypes; leave out the stage prune_impure."),
        ("dapl", "merge", "merge is for protopshare; dapl cannot share them."),
        ("pixpnet", "merge", "merge is for protopshare; pixpnet cannot share them."),
        ("dapl", "locate", "locate is for parts, not for dapl."),
        ("protopnet", "weigh_heads", "weigh_heads is for dapl and parts, not for protopnet."),
        ("blackbox", "merge", "merge is for protopshare; blackbox cannot share them."),
    ],
)
def test_stages_that_do_not_suit_a_system(system: str, stage: str, why: str, tmp_path: Path) -> None:
    text = f"model: {{system: {system}}}\nschedule: [{{stage: warm_up}}, {{stage: {stage}}}]"
    assert message_of(text, tmp_path).startswith(f"schedule.1: {why}")


def test_the_default_schedule_may_not_suit_a_system(tmp_path: Path) -> None:
    assert message_of("model: {system: pixpnet}", tmp_path).startswith("schedule.3: the logits of PixPNet are plain")
    assert message_of("model: {system: blackbox}", tmp_path).startswith("schedule.2: a black box has no prototypes")


def test_features_of_pixpnet_are_local(tmp_path: Path) -> None:
    text = "model: {system: pixpnet, backbone: {stages: [-2, -1], balance: true}}\nschedule: [{stage: warm_up}]"
    assert "balance makes every feature depend on the whole image" in message_of(text, tmp_path)


def test_heads_of_parts_look_at_each_stage_by_itself(tmp_path: Path) -> None:
    text = "model: {system: parts, backbone: {fuse: true}}"
    assert "look at each stage at its own resolution. Set fuse to false." in message_of(text, tmp_path)
    model = parse_config({"model": {"system": "parts", "backbone": {"name": "mobilenetv2_100"}}}).model
    assert (model.backbone.fuse, model.backbone.stages) == (False, [-2, -1])


SUITABLE = {
    "dapl": {"warm_up", "joint", "project", "weigh_heads", "last_layer", "prune", "prune_impure"},
    "protopnet": {"warm_up", "joint", "project", "last_layer", "prune", "prune_impure", "merge"},
    "protopshare": {"warm_up", "joint", "project", "last_layer", "prune", "prune_impure", "merge"},
    "pixpnet": {"warm_up", "joint", "project", "prune", "prune_impure"},
    "parts": {
        "locate",
        "discriminate",
        "warm_up",
        "joint",
        "project",
        "weigh_heads",
        "last_layer",
        "prune",
        "prune_impure",
    },
    "blackbox": {"warm_up", "joint", "last_layer"},
}


@pytest.mark.parametrize("system", SUITABLE)
def test_stages_that_do(system: str) -> None:
    stages = [{"stage": stage} for stage in sorted(SUITABLE[system])]
    config = parse_config({"model": {"system": system}, "schedule": stages})
    assert config.model.system == system
    assert {stage.stage for stage in config.schedule} == SUITABLE[system]


def test_a_model_without_a_system_is_dapl(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("model: {head_dim: 8}")
    model = load_config(tmp_path / "run.yaml").model
    assert isinstance(model, DaplModel)
    assert model.head_dim == 8
    over = load_config(tmp_path / "run.yaml", {"model": {"system": "protopnet", "width": 64}}).model
    assert isinstance(over, ProtoPNetModel)
    assert over.width == 64


def test_fields_are_those_of_the_system(tmp_path: Path) -> None:
    assert message_of("model: {width: 64}", tmp_path).startswith("unknown field 'model.width'")
    assert message_of("model: {system: protopnet, heads: 3}", tmp_path).startswith("unknown field 'model.heads'")
    assert message_of("model: {system: blackbox, addon_init: fan_in}", tmp_path).startswith("unknown field 'model.add")
    assert message_of("model: {system: pixpnt}", tmp_path).startswith(
        "field 'model.system': 'pixpnt' is not known; did you mean 'pixpnet'?"
    )


def test_systems_start_as_published() -> None:
    """ProtoPNet: 128 wide, ε 1e-4, −0.5 to other classes; ProtoPShare: 0; PixPNet: 192 wide, ε 1e-6."""
    protopnet, protopshare, pixpnet = (
        parse_config({"model": {"system": system}, "schedule": [{"stage": "project"}]}).model
        for system in ("protopnet", "protopshare", "pixpnet")
    )
    assert isinstance(protopnet, ProtoPNetModel)
    assert isinstance(protopshare, ProtoPShareModel)
    assert isinstance(pixpnet, PixPNetModel)
    assert (protopnet.width, protopnet.epsilon, protopnet.other_class_weight) == (128, 1e-4, -0.5)
    assert (protopshare.width, protopshare.other_class_weight) == (128, 0.0)
    assert (pixpnet.width, pixpnet.epsilon) == (192, 1e-6)
    pure, merging = parse_config(
        {"model": {"system": "protopshare"}, "schedule": [{"stage": "prune_impure"}, {"stage": "merge"}]}
    ).schedule
    assert isinstance(pure, PurePruneStage)
    assert isinstance(merging, MergeStage)
    assert (pure.nearest, pure.own) == (6, 3)
    assert (merging.share, merging.epochs) == (0.1, 25)


@pytest.mark.parametrize("system", SUITABLE)
def test_a_schedule_can_be_shared_between_systems(system: str, tmp_path: Path) -> None:
    """A learning rate for a part that a system lacks says nothing."""
    (tmp_path / "shared.yaml").write_text(
        "schedule: [{stage: joint, learning_rates: {backbone: 1e-4, addon: 1e-3, attention: 1e-3, prototypes: 1e-3, "
        "classifier: 1e-3}, weight_decay: {attention: 1e-3}}]"
    )
    config = load_config(tmp_path / "shared.yaml", {"model": {"system": system}})
    assert isinstance(config.schedule[0], JointStage)
    assert set(config.schedule[0].learning_rates) == {"backbone", "addon", "attention", "prototypes", "classifier"}
    path = tmp_path / "dumped.yaml"
    path.write_text(dump_config(config), encoding="utf-8")
    assert load_config(path) == config


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ("{stage: merge, share: 1}", "field 'schedule.0.share': input should be less than 1"),
        ("{stage: merge, share: 0}", "field 'schedule.0.share': input should be greater than 0"),
        ("{stage: merge, steps: 0}", "field 'schedule.0.steps': input should be greater than or equal to 1"),
        ("{stage: merge, step: 2}", "unknown field 'schedule.0.step'; did you mean 'steps'?"),
        ("{stage: prune_impure, nearest: 0}", "field 'schedule.0.nearest': input should be greater than or equal to 1"),
        ("{stage: prune_impure, nearest: 2}", "field 'schedule.0': own is 3 of 2 nearest, so that none could stay"),
        ("{stage: prune_impur}", "field 'schedule.0.stage': 'prune_impur' is not known; did you mean 'prune_impure'?"),
    ],
)
def test_bad_values_of_the_peers_stages(stage: str, message: str, tmp_path: Path) -> None:
    text = f"model: {{system: protopshare}}\nschedule: [{stage}]"
    assert message_of(text, tmp_path).startswith(message)
