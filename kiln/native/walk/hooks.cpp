// The hooks of a node, as far as Kiln knows their kinds, which are told apart by the names of their types.
#include "platform/python.h"
#include "platform/type_names.h"
#include "walk/walk.h"

#include <algorithm>
#include <iterator>
#include <typeinfo>

namespace kiln {
namespace {

template <class Kind, class Base>
Kind& known(Base* hook, std::string_view name) {
  if (auto* found = platform::cast_by_name<Kind>(hook, name)) return *found;
  throw Refused{std::string("a C++ hook (") + typeid(*hook).name() + ")"};
}

// The codes of the functions that register_multi_grad_hook registers, and of those in them.
void add_codes(PyObject* code, PyObject* found) {
  PyObject* constants = platform::code_constants(code);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(constants); ++i) {
    PyObject* constant = PyTuple_GET_ITEM(constants, i);
    if (!PyCode_Check(constant)) continue;
    if (PyList_Append(found, constant) < 0) raise();
    add_codes(constant, found);
  }
}

void add_codes_of(const char* module_name, const char* owner_name, const char* name, PyObject* found) {
  Owned owner(PyImport_ImportModule(module_name));
  if (owner && owner_name) owner.reset(PyObject_GetAttrString(owner.get(), owner_name));
  Owned function(owner ? PyObject_GetAttrString(owner.get(), name) : nullptr);
  if (!function || !PyFunction_Check(function.get())) raise();
  add_codes(PyFunction_GET_CODE(function.get()), found);
}

// Torch's, and those by which Kiln stands in for them.
Owned multi_grad_codes() {
  Owned found(PyList_New(0));
  if (!found) raise();
  add_codes_of("torch.autograd.graph", nullptr, "register_multi_grad_hook", found.get());
  add_codes_of("kiln.program.shared_hooks", "SharedHook", "part", found.get());
  return found;
}

bool is_multi_grad_hook(PyObject* code) {
  static PyObject* codes = multi_grad_codes().release();
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(codes); ++i) {
    if (PyList_GET_ITEM(codes, i) == code) return true;
  }
  return false;
}

// Functions of torch by which code asks what the engine does, of which it sees nothing in a task of ours: the last one,
// whether the pass is a whole one.
bool is_question(PyObject* name, bool is_partial) {
  static PyObject* questions[] = {PyUnicode_InternFromString("_current_graph_task_execution_order"),
                                  PyUnicode_InternFromString("_will_engine_execute_node"),
                                  PyUnicode_InternFromString("_current_autograd_node"),
                                  PyUnicode_InternFromString("_get_current_graph_task_keep_graph"),
                                  PyUnicode_InternFromString("_is_checkpoint_valid")};
  auto end = std::end(questions) - !is_partial;
  return std::find(std::begin(questions), end, name) != end;
}

bool has_question(PyObject* code, bool is_partial) {
  PyObject* names = platform::code_names(code);
  PyObject* constants = platform::code_constants(code);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
    if (is_question(PyTuple_GET_ITEM(names, i), is_partial)) return true;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(constants); ++i) {
    PyObject* constant = PyTuple_GET_ITEM(constants, i);
    if (PyCode_Check(constant) && has_question(constant, is_partial)) return true;
  }
  return false;
}

class HookCollector {
 public:
  HookCollector(Walk& walk, Call& call) : walk_(walk), call_(call), node_(*call.node) {}

  void run() {
    call_.hooks.first = static_cast<uint32_t>(walk_.hooks.size());
    for (auto& hook : node_.tensor_pre_hooks()) {
      auto& one = known<platform::PyFunctionTensorPreHook>(hook.get(), platform::kTensorHook);
      add_all(Hook::Kind::tensor, one.dict, static_cast<uint32_t>(one.value_idx));
    }
    for (auto& [number, hook] : node_.retains_grad_hooks()) {
      auto& one = known<platform::CppFunctionSingleTensorPreHook>(hook.get(), platform::kRetainsHook);
      add(Hook::Kind::retains, static_cast<uint32_t>(one.value_idx_), nullptr);
    }
    if (call_.needed) add_those_of_running();
    call_.hooks.count = static_cast<uint32_t>(walk_.hooks.size()) - call_.hooks.first;
    walk_.key.byte(0xff);
  }

 private:
  // Hooks of the node itself run only when it does.
  void add_those_of_running() {
    for (auto& hook : node_.pre_hooks()) {
      add_all(Hook::Kind::before, known<platform::PyFunctionPreHook>(hook.get(), platform::kPreHook).dict);
    }
    add_object();
    if (call_.kind == CallKind::accumulate) {
      if (auto& hook = node_.tensor_post_acc_grad_hooks()) {
        auto& one = known<platform::PyFunctionTensorPostAccGradHooks>(hook.get(), platform::kAccumulateHook);
        add_all(Hook::Kind::accumulate, one.dict);
      }
    }
    for (auto& hook : node_.post_hooks()) {
      add_all(Hook::Kind::after, known<platform::PyFunctionPostHook>(hook.get(), platform::kPostHook).dict);
    }
  }

  void add_object() {
    if (call_.kind == CallKind::custom) {
      add(Hook::Kind::object, 0, nullptr);
    } else if (call_.kind == CallKind::kiln) {
      add_inner(static_cast<GradNode&>(node_).context());
    } else if (call_.kind == CallKind::python) {
      Owned object(platform::node_object(call_.node));
      if (!object) raise();
      add(Hook::Kind::object, 0, std::move(object));
    }
  }

  // Hooks on what has no node of its own, by the number of their registration.
  void add_inner(PyObject* context) {
    Owned places(context ? PyObject_GetAttrString(context, "hooks") : nullptr);
    if (!places || !PyTuple_Check(places.get())) throw Refused{"a freed node"};
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(places.get()); ++i) {
      PyObject* functions = PyTuple_GET_ITEM(places.get(), i);
      if (functions == Py_None) continue;
      PyObject *name, *function;
      Py_ssize_t place = 0;
      std::vector<std::pair<Owned, Owned>> found;
      while (PyDict_Next(functions, &place, &name, &function)) found.emplace_back(share(name), share(function));
      for (auto& [key, hook] : found) {
        check_function(walk_, hook.get());
        Owned shown(PyObject_CallFunctionObjArgs(inner_hook_type().get(), hook.get(), functions, key.get(), nullptr));
        if (!shown) raise();
        add(Hook::Kind::inner, static_cast<uint32_t>(i), std::move(shown));
      }
    }
  }

  void add_all(Hook::Kind kind, PyObject* functions, uint32_t input = 0) {
    PyObject *name, *function;
    Py_ssize_t place = 0;
    while (PyDict_Next(functions, &place, &name, &function)) {
      check_function(walk_, function);
      add(kind, input, share(function));
    }
  }

  void add(Hook::Kind kind, uint32_t input, Owned object) {
    walk_.key.byte(static_cast<uint8_t>(kind));
    walk_.key.number(input);
    walk_.hooks.push_back({kind, input, std::move(object)});
  }

  Walk& walk_;
  Call& call_;
  Node& node_;
};

uint64_t mixed(uint64_t seed, uint64_t value) {
  seed ^= value + 0x9E3779B97F4A7C15u + (seed << 6) + (seed >> 2);
  return seed * 0xFF51AFD7ED558CCDu;
}

// By key, which is a number that no other hook gets. An object left behind by removed hooks is as none.
uint64_t mixed_keys(uint64_t seed, PyObject* functions) {
  PyObject *name, *function;
  Py_ssize_t place = 0;
  while (PyDict_Next(functions, &place, &name, &function)) {
    if (PyLong_CheckExact(name)) seed = mixed(seed, static_cast<uint64_t>(PyObject_Hash(name)));
    seed = mixed(seed, reinterpret_cast<uintptr_t>(function));
  }
  return seed;
}

template <class Kind, class Hooks>
uint64_t mixed_hooks(uint64_t seed, const Hooks& hooks, std::string_view name) {
  for (const auto& hook : hooks) {
    auto* one = platform::cast_by_name<Kind>(hook.get(), name);
    seed = one ? mixed_keys(seed, one->dict) : mixed(seed, reinterpret_cast<uintptr_t>(hook.get()));
  }
  return seed;
}

}  // namespace

void check_function(const Walk& walk, PyObject* function) {
  if (PyMethod_Check(function)) function = PyMethod_GET_FUNCTION(function);
  if (!PyFunction_Check(function)) return;
  PyObject* code = PyFunction_GET_CODE(function);
  if (is_multi_grad_hook(code)) throw Refused{"a multi-grad hook"};
  if (has_question(code, walk.is_partial)) throw Refused{"a function that asks the engine what it does"};
}

void collect_hooks(Walk& walk, Call& call) { HookCollector(walk, call).run(); }

Owned& inner_hook_type() {
  static Owned* type = new Owned;  // not destroyed: Python may be gone by then
  return *type;
}

uint64_t hooks_signature(Node& node, CallKind kind, uint64_t seed) {
  seed = mixed_hooks<platform::PyFunctionTensorPreHook>(seed, node.tensor_pre_hooks(), platform::kTensorHook);
  seed = mixed_hooks<platform::PyFunctionPreHook>(seed, node.pre_hooks(), platform::kPreHook);
  seed = mixed_hooks<platform::PyFunctionPostHook>(seed, node.post_hooks(), platform::kPostHook);
  for (const auto& [number, hook] : node.retains_grad_hooks()) {
    seed = mixed(mixed(seed, number), reinterpret_cast<uintptr_t>(hook.get()));
  }
  if (kind == CallKind::accumulate) {
    if (auto& hook = node.tensor_post_acc_grad_hooks()) {
      using Hooks = platform::PyFunctionTensorPostAccGradHooks;
      auto* one = platform::cast_by_name<Hooks>(hook.get(), platform::kAccumulateHook);
      seed = one ? mixed_keys(seed, one->dict) : mixed(seed, 1);
    }
  }
  return seed;
}

}  // namespace kiln
