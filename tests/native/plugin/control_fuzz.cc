// libFuzzer harness of what a client of the control socket can reach: the JSON parser and the dispatch of the
// commands, in a plugin with one listening connection.
//
// Input: one byte (bit 0: may read, bit 1: may change), then the message. Every answer must be one line of
// JSON that says whether it went well; without the right to it nothing may change.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "control/requests.h"
#include "fuzz_standalone.h"
#include "process/plugin_engine.h"

using namespace fabricpulse;

namespace {

constexpr uint64_t kConnection = 0x1234;

std::shared_ptr<PluginEngine> start() {
  std::string error;
  auto engine = PluginEngine::acquire(nullptr, PluginEngine::Purpose::kNet, &error);
  if (!engine) {
    fprintf(stderr, "no engine: %s\n", error.c_str());
    _Exit(3);  // this machine has no NIC that is up; libFuzzer would take exit() for a crash
  }
  return engine;
}

void require(bool held, const char* what, const std::string& answer) {
  if (held) return;
  fprintf(stderr, "%s: %s\n", what, answer.c_str());
  abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static std::shared_ptr<PluginEngine> engine = start();
  static Handle handle;
  static std::shared_ptr<Listener> listener = engine->listen(0, 1, &handle);
  static std::shared_ptr<RecvConnection> receiver = [] {
    Hello hello;
    memcpy(hello.token, listener->token, sizeof(hello.token));
    hello.connection = kConnection;
    hello.lanes = 2;
    hello.nic_count = 1;
    return engine->receiver_for(hello);
  }();
  require(receiver != nullptr, "no connection", "");
  if (size == 0) return 0;
  // What a client has done does not outlive its input.
  ControlRequests requests(engine.get());
  bool read = data[0] & 1, change = (data[0] & 3) == 3;
  uint32_t detail = engine->detail();
  // A heap block of the exact size: one byte read past it is found.
  std::string message(reinterpret_cast<const char*>(data + 1), size - 1);
  message.shrink_to_fit();
  // Twice: the second time an operation is known already.
  for (int i = 0; i < 2; ++i) {
    std::string answer = requests.answer(message.data(), message.size(), read, change);
    bool well = answer.compare(0, 10, "{\"ok\":true") == 0;
    require(well || answer.compare(0, 11, "{\"ok\":false") == 0, "does not say whether", answer);
    require(answer.back() == '}' && answer.size() < 256 * 1024, "no object, or too long", answer);
    for (char raw : answer) require(static_cast<uint8_t>(raw) >= 0x20, "a bare control character", answer);
    require(valid_utf8(answer.data(), answer.size()), "not UTF-8", answer);
    require(read || !well, "answered a user who may not read", answer);
  }
  require(change || engine->detail() == detail, "changed by somebody who may not", message);
  engine->set_detail(detail);
  for (uint32_t nic = 0; nic < engine->nic_count(); ++nic) {
    require(change || !engine->nic_avoided(nic), "avoided by somebody who may not", message);
    engine->set_avoided(nic, false);
  }
  return 0;
}
