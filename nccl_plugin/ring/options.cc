#include "options.h"

#include <getopt.h>
#include <glob.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace fabricpulse::ring {
namespace {

constexpr uint32_t kMostPollUs = 100'000;
constexpr uint32_t kMostSkew = 64;

constexpr const char* kUsage =
    "Usage: fabricpulse-ring --rank R --size N --rendezvous HOST:PORT [options]\n"
    "\n"
    "A verified ring all-reduce, all-to-all or stream of messages over N processes that drives a NCCL net\n"
    "plugin as NCCL does.\n"
    "\n"
    "  --rank R             number of this process, 0 to N-1\n"
    "  --size N             number of processes, 2 or more\n"
    "  --rendezvous H:P     where rank 0 listens for the exchange of handles (front-end network)\n"
    "  --plugin FILE        the plugin (default: the one installed beside this program)\n"
    "  --abi vN             symbol to use, v6 to v12 (default v12)\n"
    "  --bytes B            size of the collective (default 16M); K, M, G are powers of 1024\n"
    "  --slice B            size of one send (default 512K)\n"
    "  --channels C         connections to each neighbour, spread over the NICs (default 2)\n"
    "  --depth D            sends and receives under way on a channel (default 8)\n"
    "  --rounds K           stop after K rounds (default: at SIGTERM)\n"
    "  --seconds S          stop after S seconds\n"
    "  --forever            until SIGTERM (default)\n"
    "  --interval-ms MS     time between lines of output (default 1000)\n"
    "  --connect-seconds S  how long to wait for the other ranks at the start (default 60)\n"
    "  --compute-ms MS      pause between rounds, as a training step has (default 0)\n"
    "  --late-ms MS         how much later a straggler enters each round (default 2000)\n"
    "  --pattern PATTERN    ring (an all-reduce) or all-to-all (default ring); --slice and --order are of\n"
    "                       the ring\n"
    "  --hot R              rank of an all-to-all to which a skewed rank sends more than to others\n"
    "  --skew K             how many times as much (default 5)\n"
    "  --stream MIN-MAX     numbered messages of MIN to MAX bytes to the next rank instead of the "
    "all-reduce;\n"
    "                       --rounds counts messages of a channel\n"
    "  --order ORDER        of connect and accept: turns, one-by-one or backwards (default turns)\n"
    "  --abort-ms MS        close all connections MS after every rank has received a message, whatever is\n"
    "                       under way (with --stream of MAX >= 32)\n"
    "  --profile            call the plugin's profiler for each collective, as NCCL does\n"
    "  --json               one JSON object a line on standard output\n"
    "  --busy               never give up the processor while waiting\n"
    "  --poll-us US         how long to sleep while nothing moves (default 50)\n"
    "  --seed S             of the random content (default 1)\n"
    "\n"
    "SIGTERM or SIGINT on any rank: all ranks finish the round, print their summary and exit with 0.\n"
    "SIGUSR1: the rank is a straggler from then on; at the next one no more.\n"
    "SIGUSR2: the rank forks a child that lives for 3 s and runs no other program, as a data loader does.\n"
    "SIGRTMIN: the rank is skewed from then on; at the next one no more.\n";

bool parse_size(const char* text, uint64_t* out) {
  char* end = nullptr;
  unsigned long long value = strtoull(text, &end, 10);
  if (end == text || text[0] == '-') return false;
  switch (*end) {
    case 'K':
    case 'k':
      value <<= 10;
      ++end;
      break;
    case 'M':
    case 'm':
      value <<= 20;
      ++end;
      break;
    case 'G':
    case 'g':
      value <<= 30;
      ++end;
      break;
    default:
      break;
  }
  *out = value;
  return *end == '\0';
}

std::string default_plugin() {
  if (const char* path = getenv("FABRICPULSE_PLUGIN")) return path;
  char self[PATH_MAX];
  ssize_t size = readlink("/proc/self/exe", self, sizeof(self) - 1);
  if (size <= 0) return "libnccl-net-fabricpulse.so";
  std::string directory(self, static_cast<size_t>(size));
  directory.resize(directory.rfind('/'));
  for (const std::string& pattern :
       {directory + "/libnccl-net-fabricpulse.so",
        directory + "/../lib*/python3*/site-packages/fabricpulse/plugin/libnccl-net-fabricpulse.so"}) {
    glob_t found{};
    std::string path;
    if (glob(pattern.c_str(), 0, nullptr, &found) == 0 && found.gl_pathc > 0) path = found.gl_pathv[0];
    globfree(&found);
    if (!path.empty()) return path;
  }
  return "libnccl-net-fabricpulse.so";
}

}  // namespace

bool parse_options(int argc, char** argv, Options* options, std::string* message, int* status) {
  enum {
    kRank = 1,
    kSize,
    kRendezvous,
    kPlugin,
    kAbi,
    kBytes,
    kSlice,
    kChannels,
    kDepth,
    kRounds,
    kSeconds,
    kForever,
    kInterval,
    kCompute,
    kLate,
    kJson,
    kBusy,
    kPoll,
    kSeed,
    kConnect,
    kStream,
    kOrder,
    kAbort,
    kProfile,
    kPattern,
    kHot,
    kSkew,
    kHelp
  };
  static const option kLong[] = {{"rank", 1, nullptr, kRank},
                                 {"size", 1, nullptr, kSize},
                                 {"rendezvous", 1, nullptr, kRendezvous},
                                 {"plugin", 1, nullptr, kPlugin},
                                 {"abi", 1, nullptr, kAbi},
                                 {"bytes", 1, nullptr, kBytes},
                                 {"slice", 1, nullptr, kSlice},
                                 {"channels", 1, nullptr, kChannels},
                                 {"depth", 1, nullptr, kDepth},
                                 {"rounds", 1, nullptr, kRounds},
                                 {"seconds", 1, nullptr, kSeconds},
                                 {"forever", 0, nullptr, kForever},
                                 {"interval-ms", 1, nullptr, kInterval},
                                 {"compute-ms", 1, nullptr, kCompute},
                                 {"late-ms", 1, nullptr, kLate},
                                 {"json", 0, nullptr, kJson},
                                 {"busy", 0, nullptr, kBusy},
                                 {"poll-us", 1, nullptr, kPoll},
                                 {"seed", 1, nullptr, kSeed},
                                 {"connect-seconds", 1, nullptr, kConnect},
                                 {"stream", 1, nullptr, kStream},
                                 {"order", 1, nullptr, kOrder},
                                 {"abort-ms", 1, nullptr, kAbort},
                                 {"profile", 0, nullptr, kProfile},
                                 {"pattern", 1, nullptr, kPattern},
                                 {"hot", 1, nullptr, kHot},
                                 {"skew", 1, nullptr, kSkew},
                                 {"help", 0, nullptr, kHelp},
                                 {nullptr, 0, nullptr, 0}};
  *status = 2;
  bool have_rank = false;
  opterr = 0;
  for (;;) {
    int index = 0;
    int which = getopt_long(argc, argv, "", kLong, &index);
    if (which == -1) break;
    uint64_t number = 0;
    bool numeric = which != kRendezvous && which != kPlugin && which != kAbi && which != kForever &&
                   which != kJson && which != kBusy && which != kHelp && which != '?' && which != kSeconds &&
                   which != kStream && which != kOrder && which != kProfile && which != kPattern;
    if (numeric && !parse_size(optarg, &number)) {
      *message =
          std::string("fabricpulse-ring: --") + kLong[index].name + " " + optarg + " is not a number\n";
      return false;
    }
    switch (which) {
      case kRank:
        options->rank = static_cast<uint32_t>(number);
        have_rank = true;
        break;
      case kSize:
        options->size = static_cast<uint32_t>(number);
        break;
      case kRendezvous:
        options->rendezvous = optarg;
        break;
      case kPlugin:
        options->plugin = optarg;
        break;
      case kAbi:
        options->abi = optarg;
        break;
      case kBytes:
        options->bytes = number;
        break;
      case kSlice:
        options->slice = number;
        break;
      case kChannels:
        options->channels = static_cast<uint32_t>(number);
        break;
      case kDepth:
        options->depth = static_cast<uint32_t>(number);
        break;
      case kRounds:
        options->rounds = number;
        break;
      case kSeconds: {
        char* end = nullptr;
        options->seconds = strtod(optarg, &end);
        if (end == optarg || *end != '\0' || !(options->seconds >= 0)) {
          *message = std::string("fabricpulse-ring: --seconds ") + optarg + " is not a number of seconds\n";
          return false;
        }
        break;
      }
      case kForever:
        options->rounds = 0;
        break;
      case kInterval:
        options->interval_ms = static_cast<uint32_t>(number);
        break;
      case kCompute:
        options->compute_ms = static_cast<uint32_t>(number);
        break;
      case kLate:
        options->late_ms = static_cast<uint32_t>(number);
        break;
      case kJson:
        options->json = true;
        break;
      case kBusy:
        options->busy = true;
        break;
      case kPoll:
        options->poll_us = static_cast<uint32_t>(std::min<uint64_t>(number, kMostPollUs + 1));
        break;
      case kSeed:
        options->seed = number;
        break;
      case kConnect:
        options->connect_seconds = static_cast<int>(std::min<uint64_t>(number, 86'400));
        break;
      case kStream: {
        std::string range = optarg;
        size_t dash = range.find('-');
        options->stream = dash != std::string::npos &&
                          parse_size(range.substr(0, dash).c_str(), &options->least) &&
                          parse_size(range.substr(dash + 1).c_str(), &options->most) &&
                          options->least <= options->most && options->most <= (1u << 30);
        if (!options->stream) {
          *message = std::string("fabricpulse-ring: --stream ") + optarg + " is not MIN-MAX of at most 1G\n";
          return false;
        }
        break;
      }
      case kOrder:
        if (strcmp(optarg, "turns") == 0) {
          options->order = Order::kInTurn;
        } else if (strcmp(optarg, "one-by-one") == 0) {
          options->order = Order::kOneByOne;
        } else if (strcmp(optarg, "backwards") == 0) {
          options->order = Order::kBackwards;
        } else {
          *message =
              std::string("fabricpulse-ring: --order ") + optarg + ": turns, one-by-one or backwards\n";
          return false;
        }
        break;
      case kAbort:
        options->abort_ms = static_cast<uint32_t>(number);
        break;
      case kPattern:
        if (strcmp(optarg, "ring") == 0) {
          options->pattern = Pattern::kRing;
        } else if (strcmp(optarg, "all-to-all") == 0) {
          options->pattern = Pattern::kAllToAll;
        } else {
          *message = std::string("fabricpulse-ring: --pattern ") + optarg + ": ring or all-to-all\n";
          return false;
        }
        break;
      case kHot:
        options->hot = static_cast<uint32_t>(std::min<uint64_t>(number, UINT32_MAX));
        options->has_hot = true;
        break;
      case kSkew:
        options->skew = static_cast<uint32_t>(std::min<uint64_t>(number, kMostSkew + 1));
        break;
      case kProfile:
        options->profile = true;
        break;
      case kHelp:
        *message = kUsage;
        *status = 0;
        return false;
      default:
        *message = std::string("fabricpulse-ring: ") + argv[optind - 1] + " is not understood; see --help\n";
        return false;
    }
  }
  auto complain = [&](const std::string& text) {
    *message = "fabricpulse-ring: " + text + "\n";
    return false;
  };
  if (optind < argc) return complain(std::string(argv[optind]) + " is not understood; see --help");
  if (!have_rank || options->size < 2 || options->rank >= options->size)
    return complain("--rank R and --size N are needed, with N >= 2 and R < N");
  if (options->rendezvous.rfind(':') == std::string::npos)
    return complain("--rendezvous HOST:PORT is needed");
  if (options->channels < 1 || options->channels > 64) return complain("--channels must be 1 to 64");
  if (options->depth < 1 || options->depth > 32) return complain("--depth must be 1 to 32");
  if (options->slice < 4 || options->slice > (1u << 30)) return complain("--slice must be 4 bytes to 1G");
  if (options->interval_ms < 10) return complain("--interval-ms must be 10 or more");
  if (options->connect_seconds < 1) return complain("--connect-seconds must be 1 or more");
  if (options->poll_us < 1 || options->poll_us > kMostPollUs)
    return complain("--poll-us must be 1 to 100000");
  if (options->profile && options->stream) return complain("--profile is about the all-reduce, not --stream");
  if (options->abort_ms > 0 && !options->stream) return complain("--abort-ms needs --stream");
  if (options->abort_ms > 0 && options->most < 32)
    return complain("--abort-ms needs --stream MIN-MAX with MAX >= 32");
  if (options->pattern != Pattern::kRing && options->stream)
    return complain("--pattern is about collectives, not --stream");
  if (options->has_hot && (options->pattern != Pattern::kAllToAll || options->hot >= options->size))
    return complain("--hot R needs --pattern all-to-all, and R < N");
  if (options->skew < 1 || options->skew > kMostSkew) return complain("--skew must be 1 to 64");
  if (options->bytes < 4) return complain("--bytes must be 4 or more");
  if (options->plugin.empty()) options->plugin = default_plugin();
  return true;
}

}  // namespace fabricpulse::ring
