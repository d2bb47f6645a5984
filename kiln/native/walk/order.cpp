// Which nodes a backward pass runs, and in which order: as torch's engine finds it out, with the same heap, since the
// order of nodes that are equal to it (all leaves are) is a matter of how the heap treats equals.
#include "platform/type_names.h"
#include "walk/walk.h"

#include <queue>
#include <typeinfo>
#include <unordered_map>

namespace kiln {
namespace {

CallKind kind_by_name(const std::type_info& type) {
  if (type == typeid(platform::AccumulateGrad)) return CallKind::accumulate;
  if (type == typeid(GradNode)) return CallKind::kiln;
  if (type.name() == platform::kPythonNode) return CallKind::python;
  return platform::is_custom_node(type) ? CallKind::custom : CallKind::builtin;
}

struct Visited {
  Node* node;
  uint64_t priority;
  // How many gradients must have come before it is ready.
  uint32_t waiting = 0;
  Range edges;
  bool expanded = false;
  bool needed = false;
  bool captured = false;
  uint32_t call = kNone;

  bool runs() const { return needed || captured; }
};

struct Ready {
  uint64_t priority;
  uint32_t place;
};

struct LaterFirst {
  bool operator()(const Ready& left, const Ready& right) const { return left.priority < right.priority; }
};

// The buffers of one search, kept for the next one of the thread.
struct Buffers {
  PointerMap places;
  std::vector<Visited> visited;
  std::vector<CallEdge> targets;
  std::vector<uint32_t> pending;
};

class Search {
 public:
  Search(const Request& request, Walk& walk, Buffers& buffers)
      : request_(request),
        walk_(walk),
        places_(buffers.places),
        visited_(buffers.visited),
        targets_(buffers.targets),
        pending_(buffers.pending) {
    places_.clear();
    visited_.clear();
    targets_.clear();
    pending_.clear();
  }

  void run() {
    // The first is not a node but stands for all roots.
    visited_.push_back({nullptr, 0});
    lowest_ = lowest_output();
    expand(0, request_.roots);
    while (!pending_.empty()) {
      uint32_t place = pending_.back();
      pending_.pop_back();
      Node& node = *visited_[place].node;
      if (request_.outputs.empty() || node.topological_nr() >= lowest_) expand(place, node.next_edges());
    }
    if (!request_.outputs.empty()) find_needed();
    find_order();
    resolve_edges();
  }

 private:
  // No node below leads to an output.
  uint64_t lowest_output() const {
    uint64_t lowest = UINT64_MAX;
    for (const Edge& output : request_.outputs) lowest = std::min(lowest, output.function->topological_nr());
    return lowest;
  }

  // Places count from 1 in visited_.
  uint32_t place_of(Node* node) {
    auto [number, is_new] = places_.insert(node);
    if (is_new) {
      visited_.push_back({node, node->sequence_nr()});
      pending_.push_back(number + 1);
    }
    return number + 1;
  }

  void expand(uint32_t place, const edge_list& edges) {
    auto first = static_cast<uint32_t>(targets_.size());
    for (const Edge& edge : edges) {
      uint32_t target = edge.function ? place_of(edge.function.get()) : kNone;
      if (target != kNone) ++visited_[target].waiting;
      targets_.push_back({target, edge.input_nr});
    }
    visited_[place].edges = {first, static_cast<uint32_t>(edges.size())};
  }

  void mark_outputs() {
    uint32_t output = 0;
    for (const Edge& edge : request_.outputs) {
      auto [number, is_new] = places_.insert(edge.function.get());
      // One that the roots do not lead to is not run; it only needs a place.
      if (is_new) visited_.push_back({edge.function.get(), 0});
      Visited& visited = visited_[number + 1];
      if (request_.accumulate) {
        visited.needed = true;
      } else {
        visited.captured = true;
        walk_.captures.push_back({number + 1, edge.input_nr, output++});
      }
    }
  }

  // A node is needed when one that runs follows it.
  void find_needed() {
    mark_outputs();
    struct Frame {
      uint32_t place;
      uint32_t next;
    };
    std::vector<Frame> stack{{0, 0}};
    visited_[0].expanded = true;
    while (!stack.empty()) {
      Frame& frame = stack.back();
      Visited& visited = visited_[frame.place];
      if (frame.next == visited.edges.count) {
        bool runs = visited.runs();
        stack.pop_back();
        if (runs && !stack.empty()) visited_[stack.back().place].needed = true;
        continue;
      }
      uint32_t target = targets_[visited.edges.first + frame.next++].call;
      if (target == kNone) continue;
      if (visited_[target].expanded) {
        visited.needed |= visited_[target].runs();
      } else {
        visited_[target].expanded = true;
        stack.push_back({target, 0});
      }
    }
  }

  void find_order() {
    bool all = request_.outputs.empty();
    std::priority_queue<Ready, std::vector<Ready>, LaterFirst> heap;
    auto follow = [&](const Visited& visited, bool always) {
      for (uint32_t i = 0; i < visited.edges.count; ++i) {
        uint32_t target = targets_[visited.edges.first + i].call;
        if (target == kNone || --visited_[target].waiting > 0) continue;
        if (always || visited_[target].runs()) heap.push({visited_[target].priority, target});
      }
    };
    // A single root is where the engine starts, whether needed or not; several have a node of the engine in front.
    bool single = request_.roots.size() == 1;
    add_call(0, all || single || visited_[0].needed);
    if (walk_.calls[0].needed) follow(visited_[0], all || single);
    while (!heap.empty()) {
      uint32_t place = heap.top().place;
      heap.pop();
      bool needed = all || visited_[place].needed;
      add_call(place, needed);
      if (needed) follow(visited_[place], all);
    }
  }

  void add_call(uint32_t place, bool needed) {
    Visited& visited = visited_[place];
    visited.call = static_cast<uint32_t>(walk_.calls.size());
    Call& call = walk_.calls.emplace_back();
    call.needed = needed;
    call.captured = visited.captured;
    if (!visited.node) return;
    call.node = visited.node->getptr();
    call.kind = kind_of(*visited.node);
  }

  void resolve_edges() {
    walk_.edges.reserve(targets_.size());
    for (Visited& visited : visited_) {
      if (visited.call == kNone || !walk_.calls[visited.call].needed) continue;
      auto first = static_cast<uint32_t>(walk_.edges.size());
      for (uint32_t i = 0; i < visited.edges.count; ++i) {
        const CallEdge& target = targets_[visited.edges.first + i];
        uint32_t call = target.call == kNone ? kNone : visited_[target.call].call;
        walk_.edges.push_back({call, call == kNone ? 0 : target.input});
      }
      walk_.calls[visited.call].edges = {first, visited.edges.count};
    }
    for (Capture& capture : walk_.captures) capture.call = visited_[capture.call].call;
  }

  const Request& request_;
  Walk& walk_;
  PointerMap& places_;
  std::vector<Visited>& visited_;
  std::vector<CallEdge>& targets_;
  std::vector<uint32_t>& pending_;
  uint64_t lowest_ = 0;
};

}  // namespace

CallKind kind_of(Node& node) {
  // With the GIL held. A class has one type_info or few.
  static std::unordered_map<const std::type_info*, CallKind> known;
  const std::type_info* type = &typeid(node);
  auto found = known.find(type);
  if (found == known.end()) found = known.emplace(type, kind_by_name(*type)).first;
  return found->second;
}

void find_order(const Request& request, Walk& walk) {
  // No code of the program runs in here, so that one set of buffers a thread is enough.
  thread_local Buffers buffers;
  Search(request, walk, buffers).run();
}

}  // namespace kiln
