"""More experts, better translations: from and into English, 200 languages (GShard, figures 1, 6).

python -m experiments.experts width --data=DATA --runs=build/results/experts [--seeds=1,2,3]
python -m experiments.experts width  # only the table and the picture, of the finished runs
python -m experiments.experts baselines --data=DATA --runs=build/results/experts

Make DATA from the corpora of experiments.verses with `lingvo-moe-prepare --joint_vocab`:
into_english_200 for into_english, english_40 for power_law, larger and baselines, english_200 for
the others. The row "upcycled from it" begins with the last checkpoint of the row before it.

After each run experiments/results/experts_STUDY.json has its results, and the table
experts_STUDY.csv and the pictures experts_STUDY.png (curves) and experts_STUDY_languages.png are
written again, and experts_hours.png of all studies with the data of width. The same command makes
only what is missing; processes with other --rows or --seeds may share --runs. For baselines --rows
names pairs; the picture experts_power_law_languages.png and the table experts_power_law_gains.csv
have the gain over them.
"""

import argparse
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.tables import write_csv
from lingvo_moe.api import train_baselines
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.evaluation.evaluate import read_hypotheses
from lingvo_moe.evaluation.metrics.sp_bleu import SpBleu
from lingvo_moe.evaluation.plot import moving_average
from lingvo_moe.jobs.compare import FILE, Setting, add_runs, compare, compare_table
from lingvo_moe.reporting.figure import COLORS, to_png
from lingvo_moe.reporting.table import Table
from lingvo_moe.runtimes.local import Local
from lingvo_moe.system.files import read_json, write_whole

RESULTS = Path(__file__).parent / "results"
BASELINES = RESULTS / "experts_power_law_baselines.json"
COMMON = (
    "activation_dtype=bfloat16",
    "recipe.batch_tokens=8192",
    "input.modifiers=()",
    "train.best_by=DevLoss()",
    "train.dev_bleu_sentences=0",
)
SAME_DATA = "width", "routing", "depth"  # studies
LEVELS = 4.5, 4.2, 3.9  # dev losses, nats per target token
_BILINGUAL = ["small.BilingualNarrow", "small.Bilingual"]  # dev chooses one for each pair


def _experts(number, **fields):
    """In every second layer, without dropped choices; fields of MoEParams replace that."""
    fields = {"num_experts": number, "training": "Ragged()", **fields}
    return f"small.Narrow; model.moe=MoEParams({','.join(f'{k}={v}' for k, v in fields.items())})"


def _dense(layers=2):
    """With the FLOPs of a token of a model with two experts a token in every second layer."""
    depth = f"; model.num_encoder_layers={layers}; model.num_decoder_layers={layers}"
    return "small.Narrow; model.hidden_dim=768" + depth * (layers != 2)


_DENSE, _32 = {"dense": _dense()}, {"32 experts": _experts(32)}
_EVERY = _experts(32, every_n=1, expert="ExpertParams(hidden_dim=384)")
_SIDES = {
    "32 experts in the encoder": _experts(32, decoder_num_experts=2),
    "32 experts in the decoder": _experts(2, decoder_num_experts=32),
}
_UPCYCLING = {
    "dense for a third": "small.Narrow; train.max_steps=366",
    "upcycled from it": f"{_experts(32)}; train.max_steps=734; "
    "init.logdir={runs}/dense for a third/{seed}",
}
# Rows that hold 99.8 % of the tokens with little padding: about 9,700 target tokens a step.
_FROM_ENGLISH = "input.batch_size=40", "input.source_length=192", "input.target_length=256"
_LONG, _MIDDLE, _SHORT = (f"train.max_steps={steps}" for steps in (3250, 2400, 1100))
# params of all rows; row -> model and params, where {runs} is the study's directory
STUDIES: Mapping[str, tuple[Sequence[str], Mapping[str, str]]] = {
    "width": (
        (_LONG, *_FROM_ENGLISH),
        _DENSE
        | {f"{number} experts": _experts(number) for number in (8, 32, 128, 512)}
        | {
            "32 experts in every layer": _EVERY,
            "8 of 128 small experts": _experts(
                128, expert="ExpertParams(hidden_dim=128)", gating="TopK(k=8)"
            ),
        },
    ),
    "power_law": (
        (_MIDDLE,),
        _DENSE | {"32 experts in every layer": _EVERY, "128 experts": _experts(128)},
    ),
    # The data of power_law; 4 + 2 layers of width 192.
    "larger": (
        (_MIDDLE,),
        {"dense": "small.Dense", "32 experts in every layer": _EVERY.replace("Narrow", "MoE")},
    ),
    # All languages have the same 29,000 targets, which models without dropout soon know by heart.
    "into_english": ((_SHORT, "model.dropout_rate=0.2"), _DENSE | _32 | _SIDES),
    "depth": (
        (_SHORT, *_FROM_ENGLISH),
        _DENSE
        | _32
        | {f"dense {n} + {n} layers": _dense(n) for n in (4, 6, 15)}  # 15: weights of 32 experts
        | {
            f"32 experts {n} + {n} layers": f"{_experts(32)}; model.num_encoder_layers={n}; "
            f"model.num_decoder_layers={n}"
            for n in (4, 6)
        },
    ),
    "routing": (
        (_SHORT, *_FROM_ENGLISH),
        _32
        | _SIDES
        | _UPCYCLING
        | {
            "in every layer": _EVERY,
            "capacity 1": _experts(32, training="Gather(capacity_factor=1.0)"),
            "capacity 1.25": _experts(32, training="Gather(capacity_factor=1.25)"),
            "capacity 2": _experts(32, training="Gather(capacity_factor=2.0)"),
            "top-1 of twice the size": _experts(
                32, gating="Switch()", expert="ExpertParams(hidden_dim=1024)"
            ),
            "8 of 32 small experts": _experts(  # with a quarter of the weights
                32, expert="ExpertParams(hidden_dim=128)", gating="TopK(k=8)"
            ),
            "loss-free": _experts(
                32, gating="TopK(scores=Sigmoid(),bias=LossFree(),balance=ByGroup(weight=0.0))"
            ),
            "by language": _experts(32, router="ByTask(task='target',num_tasks=256)"),
            "by language and token": _experts(
                32, router="ByTaskAndToken(task='target',num_tasks=256)"
            ),
            "temperature 1": f"{_experts(32)}; input.temperature=1.0",
            "temperature 5": f"{_experts(32)}; input.temperature=5.0",
        },
    ),
}


def main() -> None:
    """Makes the missing runs of a study, and writes its table and picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=[*STUDIES, "baselines"])
    parser.add_argument("--data", type=Path, help="made by lingvo-moe-prepare")
    parser.add_argument("--runs", type=Path, help="directory of logdirs")
    parser.add_argument("--seeds", default="1", help="numbers, separated by commas")
    parser.add_argument("--rows", help="names, separated by commas; by default all")
    args = parser.parse_args()
    if bool(args.data) != bool(args.runs) or (args.study == "baselines" and not args.data):
        parser.error("give --data and --runs")
    if args.study == "baselines":
        _make_baselines(args.data, args.runs / "baselines", args.rows)
        return
    (of_study, study), path = STUDIES[args.study], RESULTS / f"experts_{args.study}"
    if args.data:
        runs, data = args.runs / args.study, Dataset.load(args.data)
        rows, seeds = (args.rows or ",".join(study)).split(","), args.seeds.split(",")
        common = [*COMMON, *of_study]
        for seed, row in itertools.product(map(int, seeds), rows):
            add_runs(runs / FILE, _saved(path.with_suffix(".json")))
            settings = [Setting.parse(f"{row}: {study[row].format(runs=runs, seed=seed)}")]
            made = compare(settings, data, runs, [seed], common, Local, print, split="test")
            add_runs(path.with_suffix(".json"), [with_spbleu(run, runs) for run in made])
            write(args.study, RESULTS)
    else:
        write(args.study, RESULTS)


def _make_baselines(data: Path, output: Path, rows: str | None) -> None:
    """Trains those that BASELINES does not have; rows names pairs, all by default."""
    examples = {pair.name: pair.examples.get("train", 0) for pair in Dataset.load(data).pairs}
    done = [run["row"] for run in _saved(BASELINES) if run.get("tried") == _BILINGUAL]
    pairs = rows.split(",") if rows else sorted(examples, key=lambda pair: -examples[pair])
    for pair in [pair for pair in pairs if pair not in done]:
        (one,) = train_baselines(
            _BILINGUAL,
            data,
            output / pair,
            pairs=[pair],
            own_vocabulary=True,
            set=["activation_dtype=bfloat16"],
            report=print,
        ).pairs
        run = {"row": pair, "seed": 1, "tried": _BILINGUAL, "model": one.model}
        scores = {"train": one.train_examples, "bleu": one.bleu, "chrf": one.chrf}
        add_runs(BASELINES, [run | scores])


def with_spbleu(run: dict[str, Any], runs: Path) -> dict[str, Any]:
    """A run with the spBLEU of each pair over the model's own pieces, if its report is in runs.

    BLEU says little about languages with long words.
    """
    logdir = runs / run["row"] / str(run["seed"])
    if "spbleu" in run or not (logdir / "report").exists():
        return run
    metric = SpBleu(model=str(logdir / "target.model"))
    outputs = (read_hypotheses(logdir / "report", run["split"], pair) for pair in run["pairs"])
    return run | {"spbleu": {one.pair: round(metric.score(one), 2) for one in outputs}}


def _saved(path: Path) -> list[dict[str, Any]]:
    return read_json(path)["runs"] if path.exists() else []


def _rows(study, folder):
    """Row -> its runs, in the order of the study."""
    saved = _saved(folder / f"experts_{study}.json")
    by_row = {row: [run for run in saved if run["row"] == row] for row in STUDIES[study][1]}
    return {row: runs for row, runs in by_row.items() if runs}


def write(study: str, folder: Path) -> None:
    """Writes the table and the pictures of a study, and the picture of all, from folder's runs."""
    rows, path = _rows(study, folder), folder / f"experts_{study}"
    if not rows:
        raise ValueError(f"{path}.json has no runs. Make them: give --data and --runs.")
    table = compare_table([run for runs in rows.values() for run in runs])
    columns = ["spBLEU", *(f"M tokens to {level}" for level in LEVELS)]
    cells = [
        [_spbleu(runs), *(_millions(runs, level) for level in LEVELS)] for runs in rows.values()
    ]
    table = Table(
        [*table.columns, *columns], [[*a, *b] for a, b in zip(table.rows, cells, strict=True)]
    )
    print(table.to_text())
    write_csv(path.with_suffix(".csv"), table)
    baselines = _saved(BASELINES) if study == "power_law" else []
    bilingual = {
        run["row"]: (run["train"], run["bleu"], run["chrf"], run["model"]) for run in baselines
    }
    if bilingual:
        write_csv(folder / f"{path.name}_gains.csv", gains_table(rows, bilingual))
    write_whole(path.with_suffix(".png"), to_png(draw_curves(rows)))
    write_whole(folder / f"{path.name}_languages.png", to_png(draw_languages(rows, bilingual)))
    if study in SAME_DATA:
        studies = {name: _rows(name, folder) for name in SAME_DATA}
        for row in _UPCYCLING:  # parts of a training
            studies["routing"].pop(row, None)
        write_whole(folder / "experts_hours.png", to_png(draw_hours(studies)))


def gains_table(
    rows: Mapping[str, Sequence[Mapping[str, Any]]], bilingual: Mapping[str, Sequence[Any]]
) -> Table:
    """Scores of bilingual models and differences of each row to them: means and single pairs.

    Args:
        rows: row -> its runs.
        bilingual: pair -> train lines, BLEU, chrF++, model.
    """
    order = sorted(bilingual, key=lambda pair: -bilingual[pair][0])
    third, scores = len(order) // 3, {"chrF++": 2, "BLEU": 1}
    groups = {"all": order, "third with most text": order[:third]}
    groups |= {"middle third": order[third:-third], "third with least text": order[-third:]}
    groups |= {pair: [pair] for pair in order}
    columns = [f"Δ{score}, {name}" for name in rows for score in scores]
    cells = []
    for name, pairs in groups.items():
        lines, *base = (np.mean([bilingual[p][i] for p in pairs]) for i in (0, *scores.values()))
        means = [
            [np.mean([run["pairs"][p][i] for run in runs for p in pairs]) for i in scores.values()]
            for runs in rows.values()
        ]
        gains = [mean - of for row in means for mean, of in zip(row, base, strict=True)]
        cells.append([name, f"{lines:,.0f}", *(f"{one:.1f}" for one in base)])
        model = bilingual[name][3] if name in bilingual else ""
        cells[-1] += [*(f"{gain:+.1f}" for gain in gains), model]
    names = ["pairs", "train lines", *(f"bilingual {s}" for s in scores), *columns]
    return Table([*names, "bilingual model"], cells)


def _curve(runs):
    """Means over seeds: target tokens in millions and dev losses; and hours of training steps, with
    the median time of a step, because one seed may have run on a faster machine."""
    steps, losses = np.mean([run["curve"] for run in runs], axis=0).T
    tokens = np.mean([run["target_tokens"] for run in runs]) / steps[-1]
    seconds = np.median([run["step_seconds"] for run in runs])
    return steps * tokens / 1e6, losses, steps * seconds / 3600


def _spbleu(runs):
    scores = [score for run in runs for score in run.get("spbleu", {}).values()]
    return f"{np.mean(scores):.2f}" if scores else ""


def _millions(runs, level):
    """Target tokens in millions until the dev loss is at a level; "" if it is never."""
    tokens, losses, _ = _curve(runs)
    if min(losses) > level:
        return ""
    if losses[0] < level:  # at the first evaluation
        return f"< {tokens[0]:.1f}"
    return f"{np.interp(-level, -np.minimum.accumulate(losses), tokens):.1f}"


def draw_curves(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Dev loss over target tokens, and over hours of training steps (GShard, figure 1).

    A line for each row is the mean of its runs, which differ in the seed.
    """
    figure = Figure((11, 4.5), layout="constrained", dpi=110)
    by_tokens, by_hours = figure.subplots(1, 2)
    for (name, runs), style in zip(rows.items(), _styles(), strict=False):
        tokens, losses, hours = _curve(runs)
        by_tokens.plot(tokens, losses, "o", label=name, markersize=3, **style)
        by_hours.plot(hours, losses, "o", label=name, markersize=3, **style)
    by_tokens.set(xlabel="target tokens, millions", ylabel="dev loss, nats per token")
    by_hours.set(xlabel="hours of steps, one core", ylabel="dev loss, nats per token")
    return _finish(figure)


def draw_hours(studies: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> Figure:
    """Dev loss and chrF++ of each row of each study over its hours of training steps (figure 1).

    The legend has the names of the numbered points.
    """
    figure = Figure((12, 6), layout="constrained", dpi=110)
    axes = figure.subplots(1, 2)
    points: list[tuple[str, Any, str]] = []
    for (study, rows), color in zip(studies.items(), COLORS, strict=False):
        drawn = [runs for _, runs, _ in points]  # studies may share runs
        points += [(f"{study}: {n}", runs, color) for n, runs in rows.items() if runs not in drawn]
    for one, score, label in zip(
        axes, ("dev_loss", "chrf"), ("dev loss, nats per token", "chrF++"), strict=True
    ):
        one.set(xlabel="hours of steps, one core", ylabel=label)
        one.grid(alpha=0.3)
        for number, (name, runs, color) in enumerate(points, 1):
            at = _curve(runs)[2][-1], np.mean([run[score] for run in runs])
            style = {"color": color, "alpha": 0.7, "markersize": 13}
            one.plot(*at, "o", label=f"{number} {name}", **style)
            place = {"ha": "center", "va": "center", "color": "white", "fontsize": "x-small"}
            one.text(*at, str(number), **place)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    return figure


def draw_languages(
    rows: Mapping[str, Sequence[Mapping[str, Any]]], bilingual: Mapping[str, Sequence[Any]]
) -> Figure:
    """chrF++ and BLEU of the pairs from most to least train lines, smoothed over ten pairs.

    A line for each row is the mean of its runs. With baselines, such as those in BASELINES, it is
    the difference to them, for the pairs that have one (GShard, figure 6).
    """
    pairs = next(iter(rows.values()))[0]["pairs"]
    lines = {pair: scores[0] for pair, scores in pairs.items()}
    order = sorted(bilingual or lines, key=lambda pair: (-lines[pair], pair))
    figure = Figure((11, 4.5), layout="constrained", dpi=110)
    for axes, place, score in zip(figure.subplots(1, 2), (2, 1), ("chrF++", "BLEU"), strict=True):
        for (name, runs), style in zip(rows.items(), _styles(), strict=False):
            scores = [
                np.mean([run["pairs"][pair][place] for run in runs])
                - (bilingual[pair][place] if bilingual else 0.0)
                for pair in order
            ]
            axes.plot(moving_average(scores), label=name, **style)
        shown = range(0, len(order), -(-len(order) // 8))
        axes.set_xticks(shown, [f"{lines[order[at]]:,}" for at in shown])
        if bilingual:
            axes.axhline(0, color="black", linewidth=0.8)
        label = f"Δ{score} against bilingual models" if bilingual else score
        axes.set(xlabel="train lines of a language", ylabel=label)
    return _finish(figure)


def _styles():
    for line, color in itertools.product(("-", "--", ":"), COLORS):
        yield {"color": color, "linestyle": line}


def _finish(figure):
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    return figure


if __name__ == "__main__":
    main()
