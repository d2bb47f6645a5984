// The state of torch's dispatcher in a thread, and tensors made without it. Known for torch 2.11 to 2.15.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace kiln::platform {

// ---- the thread's state ---------------------------------------------------------------------------------------------

// The dispatch keys that are included and excluded, the guard that puts such a state back, and one that excludes more.
using DispatchState = c10::impl::LocalDispatchKeySet;
using DispatchStateGuard = c10::impl::ForceDispatchKeyGuard;
using ExcludeKeysGuard = c10::impl::ExcludeDispatchKeyGuard;
inline DispatchState dispatch_state() { return c10::impl::tls_local_dispatch_key_set(); }

// Modes of __torch_dispatch__ and __torch_function__, and whether the latter is on at all.
using DispatchModes = c10::impl::TorchDispatchModeTLS;
using FunctionModes = at::impl::PythonTorchFunctionTLS;
using FunctionDisabled = at::impl::TorchFunctionDisabledState;
using at::impl::torch_function_mode_enabled;

// What a device does to make its streams and events, whichever device it is.
using DeviceGuard = c10::impl::VirtualGuardImpl;

// ---- calls and values -----------------------------------------------------------------------------------------------

// The arguments of a boxed call.
using Stack = torch::jit::Stack;
using GenericList = c10::impl::GenericList;

// ---- memory ---------------------------------------------------------------------------------------------------------

using at::detail::computeStorageNbytes;
using at::detail::empty_strided_cpu;
using at::detail::empty_strided_generic;
using at::detail::make_tensor;

}  // namespace kiln::platform
