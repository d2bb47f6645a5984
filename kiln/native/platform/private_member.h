// Access to private data members of torch's classes, for the other headers of this folder.
#pragma once

namespace kiln::platform {

// The access check does not apply to the arguments of an explicit instantiation, so one may name a private member. The
// friend hands the pointer to that member out:
//
//     struct Data { friend constexpr auto member(Data); };
//     template struct PrivateMember<Data, &SavedVariable::data_>;
//     variable.*member(Data{})
//
// A member that a version of torch renames or retypes is an error of the compiler.
template <class Tag, auto Member>
struct PrivateMember {
  friend constexpr auto member(Tag) { return Member; }
};

}  // namespace kiln::platform
