"""Lists the registered models, or shows the params of one.

lingvo-moe-models
lingvo-moe-models --show=m4.MoE128E12L
lingvo-moe-models --json
"""

import json

from lingvo_moe.config import registry
from lingvo_moe.config.params import override, to_text
from lingvo_moe.nn.layer import count_weights
from lingvo_moe.reporting.table import Table
from lingvo_moe.tasks.recipe import registered
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.tools import common
from lingvo_moe.tools.common import FLAGS, Flag

TABLE = (
    Flag("show", str, None, "Print the resolved params of this model."),
    Flag("json", bool, False, "Print the list as JSON."),
    common.SET,
)  # fmt: skip


def format_count(count: int) -> str:
    """The count in short form: 617,946,677,248 is "618B"."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if round(count, -len(str(count)) + 3) >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)


def list_models() -> Table:
    """A row for each model: name, number of weights, description."""
    rows = []
    for name in registry.all_names():
        count = count_weights(TranslationTask(registered(name)).weights())
        rows.append((name, format_count(count), registry.describe(name)))
    return Table(("model", "weights", "description"), rows, texts=3)


@common.tool(TABLE)
def main() -> None:
    """Flags to one of the functions above."""
    common.check_effect("with --show", bool(FLAGS.show), "set")
    common.check_effect("without --show", not FLAGS.show, "json")
    if FLAGS.show:
        print(to_text(override(registry.get_params(FLAGS.show), FLAGS.set)), end="")
    else:
        table = list_models()
        print(json.dumps(table.to_json(), indent=1) if FLAGS.json else table.to_text())


if __name__ == "__main__":
    main()
