"""The smallest cut between a source and a sink (Dinic's algorithm), for graphs of some ten thousand edges."""

from __future__ import annotations

SOURCE, SINK = 0, 1
UNBOUNDED = 1 << 62


class FlowGraph:
    """Edges are pairs: an even one and, right after it, its reverse; what is left of their capacity is all there is."""

    def __init__(self) -> None:
        self.heads: list[int] = []
        self.capacities: list[int] = []
        self.edges: list[list[int]] = [[], []]  # by vertex: source, sink, then others

    def add_vertex(self) -> int:
        self.edges.append([])
        return len(self.edges) - 1

    def add_edge(self, tail: int, head: int, capacity: int) -> None:
        self.edges[tail].append(len(self.heads))
        self.heads.append(head)
        self.capacities.append(capacity)
        self.edges[head].append(len(self.heads))
        self.heads.append(tail)
        self.capacities.append(0)

    def sink_side(self) -> list[bool]:
        """By vertex, whether it is on the sink's side of the smallest cut; of several, the cut nearest to the sink."""
        distances = self.distances()
        while distances[SOURCE] >= 0:
            self.block(distances)
            distances = self.distances()
        return [distance >= 0 for distance in distances]

    def distances(self) -> list[int]:
        """How many edges with capacity left there are from each vertex to the sink; -1: there is no way."""
        distances = [-1] * len(self.edges)
        distances[SINK] = 0
        heads, capacities, frontier = self.heads, self.capacities, [SINK]
        for vertex in frontier:  # grows
            next_distance = distances[vertex] + 1
            for edge in self.edges[vertex]:
                tail = heads[edge]
                if distances[tail] < 0 and capacities[edge ^ 1] > 0:
                    distances[tail] = next_distance
                    frontier.append(tail)
        return distances

    def block(self, distances: list[int]) -> None:
        """Send flow along shortest ways until each of them has a full edge."""
        heads, capacities, edges = self.heads, self.capacities, self.edges
        cursors = [0] * len(edges)
        path: list[int] = []
        vertex = SOURCE
        while True:
            if vertex == SINK:
                vertex = self.push(path)
                continue
            leaving, cursor, wanted = edges[vertex], cursors[vertex], distances[vertex] - 1
            while cursor < len(leaving):
                edge = leaving[cursor]
                if capacities[edge] > 0 and distances[heads[edge]] == wanted:
                    break
                cursor += 1
            cursors[vertex] = cursor
            if cursor < len(leaving):
                path.append(edge)
                vertex = heads[edge]
            elif path:
                vertex = heads[path.pop() ^ 1]
                cursors[vertex] += 1
            else:
                return

    def push(self, path: list[int]) -> int:
        """Fill a way from source to sink; back to the tail of its first full edge, from where another may lead on."""
        capacities = self.capacities
        amount = min([capacities[edge] for edge in path])
        for edge in path:
            capacities[edge] -= amount
            capacities[edge ^ 1] += amount
        full = next(index for index, edge in enumerate(path) if capacities[edge] == 0)
        tail = self.heads[path[full] ^ 1]
        del path[full:]
        return tail
