#include "rpc/core/one_sided/region_use.hpp"

#include "rpc/core/one_sided/denials.hpp"

namespace axon::rpc {

namespace {

class RegionUse final : public engine::Submission {
 public:
  RegionUse(engine::Engine& engine, std::shared_ptr<Exposed> exposed, std::shared_ptr<Region> region) noexcept
      : engine_(engine), exposed_(std::move(exposed)), region_(std::move(region)) {}

  static void end(void* use) {
    auto* const self = static_cast<RegionUse*>(use);
    const bool may_rest = self->region_->local_uses().leave() && !self->engine_.has_ended();
    may_rest ? self->engine_.submit_after_completion(*self) : delete self;
  }

 private:
  void begin() noexcept override {
    exposed_->regions.release_rested();
    delete this;
  }
  void complete() noexcept override {}

  engine::Engine& engine_;
  const std::shared_ptr<Exposed> exposed_;  // shared with the runtime, which may be destroyed first
  const std::shared_ptr<Region> region_;    // shared with the runtime and its users
};

}  // namespace

Result<Owner> use_region(engine::Engine& engine, const std::shared_ptr<Exposed>& exposed,
                         const std::shared_ptr<Region>& region) {
  if (!region->local_uses().enter()) return region_is_closed(region->name());
  return Owner(new RegionUse(engine, exposed, region), &RegionUse::end);
}

}  // namespace axon::rpc
