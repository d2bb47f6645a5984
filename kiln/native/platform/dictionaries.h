// What a dictionary held when it was looked at, and whether that has changed. For CPython 3.11 to 3.14.
//
// Up to 3.12 CPython gives each state of each dictionary a number of its own. From 3.13 on it has none; there a watcher,
// part of its C API, is told before a watched dictionary changes or dies. The first event ends the watch, so that a
// dictionary that changes often costs its program nothing until it is looked at again.
#pragma once

#include "native.h"

#include <cstdint>
#include <memory>
#include <unordered_map>

namespace kiln::platform {

#if PY_VERSION_HEX < 0x030D0000

// A number that no other state of any dictionary has.
inline uint64_t dictionary_version(PyObject* dictionary) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  return reinterpret_cast<PyDictObject*>(dictionary)->ma_version_tag;
#pragma GCC diagnostic pop
}

class DictionaryState {
 public:
  DictionaryState() = default;

  // The state that the dictionary has now.
  static DictionaryState of(PyObject* dictionary) {
    DictionaryState state;
    state.dictionary_ = dictionary;
    state.version_ = dictionary_version(dictionary);
    return state;
  }

  // Whether this is the state of the dictionary, which is alive. Never where there was no dictionary.
  bool is_state_of(PyObject* dictionary) const {
    return dictionary == dictionary_ && dictionary && dictionary_version(dictionary) == version_;
  }

 private:
  PyObject* dictionary_ = nullptr;  // borrowed, compared only
  uint64_t version_ = 0;
};

#else

// All watches that have not ended. A dictionary has at most one; those who look at its state share it.
class DictionaryWatches {
 public:
  using Ended = std::shared_ptr<const bool>;

  // The watch of the dictionary; null where CPython has no watcher left to give.
  Ended watch(PyObject* dictionary) {
    if (watcher_ < 0 || (!told_of_attributes_ && !make_combined(dictionary))) return nullptr;
    auto [place, is_new] = ended_.try_emplace(dictionary);
    if (is_new) {
      place->second = std::make_shared<bool>(false);
      if (PyDict_Watch(watcher_, dictionary) < 0) {
        PyErr_Clear();
        ended_.erase(place);
        return nullptr;
      }
    }
    return place->second;
  }

  // Never destroyed: dictionaries die until the process ends.
  static DictionaryWatches& all() {
    if (!instance_) new DictionaryWatches();
    return *instance_;
  }

 private:
  DictionaryWatches() : watcher_(PyDict_AddWatcher(end)) {
    instance_ = this;
    told_of_attributes_ = watcher_ >= 0 && is_told_of_attributes();
    PyErr_Clear();
  }

  // Whether the watcher is told when an attribute is set on an object, which then writes into values that it shares with
  // its dictionary. CPython 3.13.0 does not tell it.
  bool is_told_of_attributes() {
    Owned kind(PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyType_Type), "s(){}", "Probe"));
    Owned object(kind ? PyObject_CallNoArgs(kind.get()) : nullptr);
    if (!object || PyObject_SetAttrString(object.get(), "name", Py_None) < 0) return false;
    Owned attributes(PyObject_GenericGetDict(object.get(), nullptr));
    if (!attributes || PyDict_Watch(watcher_, attributes.get()) < 0) return false;
    events_ = 0;
    return PyObject_SetAttrString(object.get(), "name", Py_True) == 0 && events_ == 1;
  }

  // Gives the dictionary a table of its own: CPython makes one when the last entry is popped. False where there is none
  // still. Entries and their order stay as they were: the last one is put back into its place, which needs no memory.
  static bool make_combined(PyObject* dictionary) {
    auto* values = &reinterpret_cast<PyDictObject*>(dictionary)->ma_values;
    if (!*values) return true;
    Owned last(PyObject_CallMethod(reinterpret_cast<PyObject*>(&PyDict_Type), "popitem", "O", dictionary));
    if (last) PyDict_SetItem(dictionary, PyTuple_GET_ITEM(last.get(), 0), PyTuple_GET_ITEM(last.get(), 1));
    PyErr_Clear();
    return !*values;
  }

  static int end(PyDict_WatchEvent event, PyObject* dictionary, PyObject*, PyObject*) {
    auto& watches = *instance_;
    ++watches.events_;
    auto found = watches.ended_.find(dictionary);
    if (found == watches.ended_.end()) return 0;
    *found->second = true;
    watches.ended_.erase(found);
    return event == PyDict_EVENT_DEALLOCATED ? 0 : PyDict_Unwatch(watches.watcher_, dictionary);
  }

  static inline DictionaryWatches* instance_ = nullptr;

  int watcher_;
  bool told_of_attributes_ = false;
  int events_ = 0;  // counted for the probe
  std::unordered_map<PyObject*, std::shared_ptr<bool>> ended_;
};

class DictionaryState {
 public:
  DictionaryState() = default;

  // The state that the dictionary has now.
  static DictionaryState of(PyObject* dictionary) {
    DictionaryState state;
    state.dictionary_ = dictionary;
    state.ended_ = DictionaryWatches::all().watch(dictionary);
    return state;
  }

  // Whether this is the state of the dictionary, which is alive. Never where there was no dictionary.
  bool is_state_of(PyObject* dictionary) const { return dictionary == dictionary_ && ended_ && !*ended_; }

 private:
  PyObject* dictionary_ = nullptr;  // borrowed, compared only
  DictionaryWatches::Ended ended_;
};

#endif

// Whether a state ends with the change that `change` makes to the dictionary. Where no state can be known (CPython has no
// watcher left to give) there is none that could outlive a change.
template <class Change>
bool state_ends_with(PyObject* dictionary, Change change) {
  auto state = DictionaryState::of(dictionary);
  return change() >= 0 && !state.is_state_of(dictionary);
}

}  // namespace kiln::platform
