// fabricpulse.clocksync._report_intake: reports of sidecars as datagrams, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>

#include "python_module.h"
#include "report_intake.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace fabricpulse;

namespace {

template <typename Record>
std::vector<Record> records_of(nb::bytes raw) {
  if (raw.size() % sizeof(Record)) throw std::invalid_argument("not a whole number of records");
  std::vector<Record> out(raw.size() / sizeof(Record));
  if (!out.empty()) std::memcpy(static_cast<void*>(out.data()), raw.c_str(), raw.size());
  return out;
}

// As a buffer that is not copied: of 50,000 hosts both copies would be 70 MB.
template <typename Record>
nb::object handed_over(std::vector<Record> records) {
  auto kept = std::make_unique<std::vector<Record>>(std::move(records));
  const auto* data = reinterpret_cast<const std::uint8_t*>(kept->data());
  const std::size_t size = kept->size() * sizeof(Record);
  if (size == 0) return nb::bytes("", 0);
  nb::capsule owner(kept.get(), [](void* p) noexcept { delete static_cast<std::vector<Record>*>(p); });
  (void)kept.release();
  return nb::cast(nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>(data, {size}, owner));
}

}  // namespace

NB_MODULE(_report_intake, m) {
  raise_os_errors();

  m.attr("REQUEST_MAGIC") = kRequestMagic;
  m.attr("REPLY_MAGIC") = kReplyMagic;
  m.attr("RESET_MAGIC") = kResetMagic;
  m.attr("HEAD_SIZES") = nb::make_tuple(sizeof(RequestHead), sizeof(ReplyHead), sizeof(Arrival));
  m.attr("MAX_DATAGRAM") = kMaxDatagram;
  m.attr("MIN_REQUEST") = kMinRequest;
  m.attr("MAX_PARTS") = kMaxParts;

  nb::class_<ReportIntake>(m, "ReportIntake")
      .def(nb::init<const std::vector<std::pair<std::string, std::uint16_t>>&, int>(), "addresses"_a,
           "receive_buffer"_a)
      .def("stop", &ReportIntake::stop, nb::call_guard<nb::gil_scoped_release>())
      .def("open_channel",
           [](ReportIntake& intake, nb::bytes key) { return intake.open_channel(to_key(key)); })
      .def("close_channel", &ReportIntake::close_channel)
      .def("take",
           [](ReportIntake& intake) {
             std::vector<Arrival> arrivals;
             std::vector<std::uint8_t> edges;
             {
               nb::gil_scoped_release release;
               intake.take(&arrivals, &edges);
             }
             return nb::make_tuple(handed_over(std::move(arrivals)), handed_over(std::move(edges)));
           })
      .def("answer",
           [](ReportIntake& intake, nb::bytes heads, nb::bytes spans, nb::bytes residuals,
              const std::string& name) {
             const std::vector<ReplyHead> replies = records_of<ReplyHead>(heads);
             const std::vector<std::uint32_t> bounds = records_of<std::uint32_t>(spans);
             if (bounds.size() != 2 * replies.size())
               throw std::invalid_argument("a begin and an end a reply");
             const auto* data = reinterpret_cast<const std::uint8_t*>(residuals.c_str());
             const std::size_t size = residuals.size();
             nb::gil_scoped_release release;
             return intake.answer(replies, bounds, data, size, name);
           })
      .def("waiting", &ReportIntake::waiting)
      .def_prop_ro("salt", &ReportIntake::salt)
      .def_prop_ro("event_fd", &ReportIntake::event_fd)
      .def("counts", [](ReportIntake& intake) {
        const IntakeCounts c = intake.counts();
        nb::dict out;
        out["taken"] = c.taken;
        out["malformed"] = c.malformed;
        out["unknown"] = c.unknown;
        out["forged"] = c.forged;
        out["replayed"] = c.replayed;
        out["incomplete"] = c.incomplete;
        out["surplus"] = c.surplus;
        out["overflowed"] = c.overflowed;
        out["answered"] = c.answered;
        out["unsendable"] = c.unsendable;
        return out;
      });
}
