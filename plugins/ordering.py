"""Orders plugins by their declared `before` and `after`, then by id."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from .errors import PluginCycleError
from .registry import Plugin


def order_plugins(plugins: Sequence[Plugin]) -> list[Plugin]:
    """Sort so that every `before` and `after` holds; among free ones the lower id goes first.

    Raises:
        PluginCycleError: the declarations contradict each other; the cycle is printed.
    """
    by_id = {plugin.id: plugin for plugin in plugins}
    followers: dict[str, set[str]] = {name: set() for name in by_id}
    for plugin in plugins:
        for later in plugin.info.before:
            if later in by_id:
                followers[plugin.id].add(later)
        for earlier in plugin.info.after:
            if earlier in by_id:
                followers[earlier].add(plugin.id)
    waiting = {name: 0 for name in by_id}
    for names in followers.values():
        for name in names:
            waiting[name] += 1
    ready = [name for name, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    ordered: list[Plugin] = []
    while ready:
        name = heapq.heappop(ready)
        ordered.append(by_id[name])
        for later in followers[name]:
            waiting[later] -= 1
            if waiting[later] == 0:
                heapq.heappush(ready, later)
    if len(ordered) < len(by_id):
        cycle = " -> ".join(_find_cycle(followers, {n for n, count in waiting.items() if count}))
        raise PluginCycleError(
            f"the order of the enabled plugins is a cycle: {cycle}; disable one of them"
        )
    return ordered


def _find_cycle(followers: dict[str, set[str]], stuck: set[str]) -> list[str]:
    """One cycle among the stuck names, each before the next, the first repeated at the end."""
    leaders = {
        name: sorted(other for other in stuck if name in followers[other]) for name in stuck
    }
    path = [min(stuck)]
    while True:
        leader = leaders[path[-1]][0]
        if leader in path:
            return [leader, *reversed(path[path.index(leader) :])]
        path.append(leader)
