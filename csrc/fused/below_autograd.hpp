// Guards the operations that an operator calls: these are neither differentiated nor cast again.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>

namespace axon::fused {

struct BelowAutograd {
  at::AutoDispatchBelowADInplaceOrView autograd;
  c10::impl::ExcludeDispatchKeyGuard autocast{c10::autocast_dispatch_keyset};
};

}  // namespace axon::fused
