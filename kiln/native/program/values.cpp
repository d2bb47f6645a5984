// The values of a program: between Python and registers, and tensors over memory.
#include "program/program.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>

namespace kiln {
namespace {

using Sizes = c10::SmallVector<int64_t, 8>;

// Where new tensors in that memory are dispatched.
c10::DispatchKeySet keys_of(const Memory& memory) {
  return c10::DispatchKeySet(memory.device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA);
}

bool is_number(const IValue& value) { return value.isScalar(); }

IValue fitted(const Argument& argument, IValue value) {
  if (argument.wants_double && value.isInt()) return static_cast<double>(value.toInt());
  if (argument.wants_tensor && is_number(value)) return number_as_tensor(value);
  return value;
}

template <class Element, class Convert>
IValue list_of(const Argument& argument, Registers& registers, Convert convert) {
  c10::List<Element> list;
  list.reserve(argument.parts.size());
  for (const Argument& part : argument.parts) list.push_back(convert(read(part, registers)));
  return list;
}

}  // namespace

IValue number_as_tensor(const IValue& number) {
  at::Tensor tensor = c10::scalar_to_tensor(number.toScalar());
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

IValue from_python(PyObject* object) {
  if (is_tensor(object)) return tensor_in(object);
  if (object == Py_None) return {};
  if (PyBool_Check(object)) return object == Py_True;
  if (PyLong_CheckExact(object)) {
    int overflow = 0;
    int64_t number = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (!overflow) return number;
  }
  if (PyFloat_CheckExact(object)) return PyFloat_AS_DOUBLE(object);
  return value_in(object, c10::PyObjectType::get());
}

Owned to_python(const IValue& value) {
  if (value.isTensor()) return Owned(tensor_object(value.toTensor()));
  return Owned(value_object(value));
}

IValue read(const Argument& argument, Registers& registers) {
  if (argument.place < 0) return argument.constant;
  IValue& value = registers[argument.place];
  return fitted(argument, argument.last ? std::move(value) : value);
}

IValue read_sequence(const Argument& argument, Registers& registers) {
  if (argument.elements == Elements::integers) {
    return list_of<int64_t>(argument, registers, [](IValue value) { return value.toInt(); });
  }
  if (argument.elements == Elements::doubles) {
    return list_of<double>(argument, registers, [](IValue value) { return value.toScalar().toDouble(); });
  }
  if (argument.elements == Elements::scalars) {
    platform::GenericList list(c10::NumberType::get());
    for (const Argument& part : argument.parts) list.push_back(read(part, registers));
    return list;
  }
  if (argument.elements == Elements::tensors) {
    return list_of<at::Tensor>(argument, registers, [](IValue value) { return std::move(value).toTensor(); });
  }
  return list_of<std::optional<at::Tensor>>(argument, registers, [](IValue value) {
    return value.isNone() ? std::nullopt : std::optional<at::Tensor>(std::move(value).toTensor());
  });
}

// ---- memory --------------------------------------------------------------------------------------------------------

Memory memory_of(int64_t index) {
  if (index < 0) return {};
  Memory memory{c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index))};
  // The allocator that torch uses now, which may be one of the user's.
  memory.allocator = at::empty({0}, at::TensorOptions().dtype(at::kByte).device(memory.device)).storage().allocator();
  TORCH_CHECK(memory.allocator, "torch has no allocator for the memory of the device " + memory.device.str());
  return memory;
}

bool lies_so(const at::Tensor& tensor, const Layout& layout, const Frame& frame) {
  Sizes size_place, stride_place;
  at::IntArrayRef sizes = layout.sizes.now(frame, size_place), strides = layout.strides.now(frame, stride_place);
  at::IntArrayRef real_sizes = tensor.sizes(), real_strides = tensor.strides();
  if (real_sizes != sizes) return false;
  if (layout.alignment != 1) {
    auto address = reinterpret_cast<uintptr_t>(tensor.unsafeGetTensorImpl()->data());
    if (address % layout.alignment != 0) return false;
  }
  bool is_empty = false, is_alike = true;
  for (size_t i = 0; i < sizes.size(); ++i) {
    is_empty = is_empty || sizes[i] == 0;
    is_alike = is_alike && (sizes[i] == 1 || strides[i] == real_strides[i]);
  }
  return is_alike || is_empty;
}

at::Tensor allocated(const Layout& layout, const Frame& frame) {
  Sizes size_place, stride_place;
  at::IntArrayRef sizes = layout.sizes.now(frame, size_place), strides = layout.strides.now(frame, stride_place);
  if (frame.memory.device.is_cpu()) return at::Tensor(platform::empty_strided_cpu(sizes, strides, layout.dtype));
  return at::Tensor(platform::empty_strided_generic(sizes, strides, frame.memory.allocator, keys_of(frame.memory),
                                                    layout.dtype));
}

at::Tensor view_of(const at::Tensor& source, const Layout& layout, int64_t offset, const Frame& frame) {
  Sizes size_place, stride_place;
  at::IntArrayRef sizes = layout.sizes.now(frame, size_place), strides = layout.strides.now(frame, stride_place);
  at::Tensor made = platform::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(source.storage()),
                                                             source.key_set(), source.dtype());
  c10::TensorImpl* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(sizes, strides, source.storage_offset() + offset);
  if (!source.is_inference()) impl->set_version_counter(source.unsafeGetTensorImpl()->version_counter());
  return made;
}

at::Tensor again(const at::Tensor& source, const Layout& layout, const Frame& frame) {
  Sizes size_place, stride_place;
  at::IntArrayRef sizes = layout.sizes.now(frame, size_place), strides = layout.strides.now(frame, stride_place);
  at::Tensor made = platform::make_tensor<c10::TensorImpl>(c10::Storage(source.storage()),
                                                             keys_of(frame.memory),
                                                             c10::scalarTypeToTypeMeta(layout.dtype));
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, 0);
  return made;
}

bool is_sole_owner(const at::Tensor& tensor, const Memory& memory) {
  c10::Allocator* allocator = memory.device.is_cpu() ? c10::GetCPUAllocator() : memory.allocator;
  // Memory of numpy and its like is not torch's, even if torch alone holds it.
  return tensor.defined() && tensor.use_count() == 1 && tensor.has_storage() && tensor.storage().use_count() == 1 &&
         tensor.storage().resizable() && tensor.storage_offset() == 0 &&
         memory.has(tensor) && tensor.storage().data_ptr().get_deleter() == allocator->raw_deleter();
}

at::Tensor unknown_to_python(const at::Tensor& tensor) {
  at::Tensor made = platform::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(tensor.storage()),
                                                             tensor.key_set(), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return made;
}

}  // namespace kiln
