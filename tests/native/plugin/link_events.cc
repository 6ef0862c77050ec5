// Prints the events in the rtnetlink messages on standard input (nccl_plugin/src/process/link_events.h), one
// a line: kind, index, name. tests/unit/plugin/test_link_events.py writes them.
#include "process/link_events.h"

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

int main() {
  std::vector<char> read_so_far(1 << 20);
  size_t size = 0;
  for (ssize_t got; (got = read(0, read_so_far.data() + size, read_so_far.size() - size)) > 0;)
    size += static_cast<size_t>(got);
  // A heap block of the exact size: one byte read past it is found.
  std::unique_ptr<char[]> data(new char[size]);
  memcpy(data.get(), read_so_far.data(), size);
  fabricpulse::parse_link_events(data.get(), size, [](const fabricpulse::LinkEvent& event) {
    static constexpr const char* kKinds[] = {"link", "link-gone", "address", "address-gone"};
    printf("%s %u %s\n", kKinds[static_cast<int>(event.kind)], event.ifindex, event.name);
  });
  return 0;
}
