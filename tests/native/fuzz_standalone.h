// Where there is no libFuzzer (-DSTANDALONE): a main() that mutates seed files by itself.
// Usage: PROGRAM RUNS|SECONDSs SEED FILE..., for example `probe_fuzz 50000 1 seeds/*` or `probe_fuzz 600s 7
// seeds/*`.
#ifndef FABRICPULSE_TESTS_FUZZ_STANDALONE_H_
#define FABRICPULSE_TESTS_FUZZ_STANDALONE_H_

#ifdef STANDALONE
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  using Bytes = std::vector<std::uint8_t>;
  if (argc < 4) return 2;
  std::vector<Bytes> seeds;
  std::size_t longest = 4096;
  for (int i = 3; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    longest = std::max(longest, seeds.back().size());
    LLVMFuzzerTestOneInput(seeds.back().data(), seeds.back().size());
  }
  std::mt19937_64 random(std::stoull(argv[2]));
  const std::string bound = argv[1];
  const auto began = std::chrono::steady_clock::now();
  const auto over = [&](long run) {
    if (bound.back() != 's') return run >= std::stol(bound);
    return std::chrono::steady_clock::now() - began >= std::chrono::seconds(std::stol(bound));
  };
  long run = 0;
  for (; !over(run); ++run) {
    Bytes input = seeds[random() % seeds.size()];
    const Bytes& other = seeds[random() % seeds.size()];
    for (std::uint64_t edits = random() % 12; edits > 0; --edits) {
      std::size_t at = input.empty() ? 0 : random() % input.size();
      switch (random() % 6) {
        case 0:
        case 1:
          if (!input.empty()) input[at] = static_cast<std::uint8_t>(random());
          break;
        case 2:
          if (!input.empty()) input[at] ^= static_cast<std::uint8_t>(1u << random() % 8);
          break;
        case 3:
          input.insert(input.begin() + static_cast<long>(at), static_cast<std::uint8_t>(random()));
          break;
        case 4:  // a piece of another seed, in place or in between
          if (!other.empty()) {
            std::size_t from = random() % other.size(), length = random() % (other.size() - from + 1);
            input.insert(input.begin() + static_cast<long>(at), other.begin() + static_cast<long>(from),
                         other.begin() + static_cast<long>(from + length));
          }
          break;
        default:
          if (!input.empty()) {
            std::size_t length = random() % std::min<std::size_t>(input.size() - at + 1, 32);
            input.erase(input.begin() + static_cast<long>(at),
                        input.begin() + static_cast<long>(at + length));
          }
      }
    }
    if (input.size() > longest) input.resize(longest);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::fprintf(stderr, "executed %ld\n", run);
}
#endif

#endif  // FABRICPULSE_TESTS_FUZZ_STANDALONE_H_
