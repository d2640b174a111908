"""NestedMap: a dict with attribute access that holds theta, optimizer slots and metrics."""

from collections.abc import Callable, Iterator
from typing import Any


class NestedMap(dict):
    """A dict whose string keys read as attributes; maps inside maps form a tree.

    TensorFlow's tf.nest treats it as a dict and returns NestedMaps. JAX's pytrees treat it as a
    leaf until it is registered.

    Raises AttributeError: on reading a missing key; the message lists the existing keys.
    """

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(f"NestedMap has no key {key!r}; it has {sorted(self)}.") from None

    def __setattr__(self, key: str, value: Any) -> None:
        self[key] = value

    def flatten(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        """Yields ("a/b/c", leaf) in sorted order of keys; every value but a dict is a leaf."""
        for key in sorted(self):
            value = self[key]
            if isinstance(value, dict):
                yield from NestedMap(value).flatten(f"{prefix}{key}/")
            else:
                yield f"{prefix}{key}", value

    def map(self, fn: Callable[..., Any], *others: dict) -> "NestedMap":
        """A tree with fn(leaf, *leaves of the others at the same path) at each leaf."""
        return NestedMap(
            {
                key: NestedMap(value).map(fn, *(other[key] for other in others))
                if isinstance(value, dict)
                else fn(value, *(other[key] for other in others))
                for key, value in self.items()
            }
        )

    @staticmethod
    def unflatten(items: dict[str, Any]) -> "NestedMap":
        """The inverse of flatten: {"a/b": x} becomes NestedMap(a=NestedMap(b=x))."""
        tree = NestedMap()
        for path, value in items.items():
            *parents, last = path.split("/")
            node = tree
            for parent in parents:
                node = node.setdefault(parent, NestedMap())
            node[last] = value
        return tree
