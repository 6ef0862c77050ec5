// A job whose child, made by fork() without exec, does what a library's exit handlers may do there: it goes on with its
// parent's connections, ends them and their communicator, and then begins communicators of its own.
//
// Usage: plugin_fork_host LIBRARY. Prints `forked` once the child has ended well, waits for SIGUSR1, moves a message
// and ends. Exit 1 with a line of what broke. Holds: no call in the child hangs, touches a descriptor that the child has
// opened since, or ends what is the parent's; the child can communicate by itself.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <vector>

#include "nccl_host.h"

using namespace fabricpulse::abi;
using namespace nccl_host;

namespace {

constexpr unsigned kPatienceS = 20;
constexpr size_t kSize = 1000;  // in the receiver's hands before a receive is posted

struct Job {
  const NetV12* net = nullptr;
  const NetV6* old = nullptr;
  void* context = nullptr;
  Loop loop;
  std::vector<char> out = std::vector<char>(kSize, 7), in = std::vector<char>(kSize);
  void* under_way = nullptr;  // a send

  const char* begin() {
    Config config{-1};
    if (net->init(&context, 1, &config, log_line, nullptr) != kSuccess) return "init";
    if (const char* what = loop.connect(net, context)) return what;
    return loop.move(net, out.data(), in.data(), in.size(), nullptr);
  }
  void end() {
    loop.close(net);
    net->finalize(context);
  }
};

// Files that get the numbers of the descriptors that the plugin has closed in this child.
struct OwnFiles {
  std::vector<int> fds;
  OwnFiles() {
    for (int i = 0; i < 64; ++i) fds.push_back(open("/dev/null", O_RDWR | O_CLOEXEC));
  }
  bool open_still() const {
    for (int fd : fds)
      if (fcntl(fd, F_GETFD) < 0) return false;
    return true;
  }
};

const char* use_inherited(Job* job) {
  int done = 0;
  void *request = nullptr, *data = job->in.data(), *comm = nullptr;
  size_t size = kSize;
  int tag = 0;
  if (job->net->test(job->under_way, &done, nullptr) == kSuccess || done != 0) return "test of the parent's";
  if (job->net->isend(job->loop.sending, data, size, 0, nullptr, nullptr, &request) == kSuccess)
    return "isend on the parent's";
  if (job->net->irecv(job->loop.receiving, 1, &data, &size, &tag, nullptr, nullptr, &request) == kSuccess)
    return "irecv on the parent's";
  if (job->net->accept(job->loop.listening, &comm, nullptr) == kSuccess) return "accept on the parent's";
  char handle[kHandleBytes];
  if (job->net->listen(job->context, 0, handle, &comm) == kSuccess) return "listen of the parent's";
  return nullptr;
}

int child(Job* job) {
  alarm(kPatienceS);
  const OwnFiles own;
  if (const char* what = use_inherited(job)) return failed(what);
  job->end();
  if (!own.open_still()) return failed("the child's files are closed");
  Job mine;
  mine.net = job->net;
  if (const char* what = mine.begin()) return failed(what);
  mine.end();
  char handle[kHandleBytes];
  void* listening = nullptr;
  if (job->old->init(log_line) != kSuccess || job->old->listen(0, handle, &listening) != kSuccess ||
      job->old->close_listen(listening) != kSuccess)
    return failed("the older interface");
  return own.open_still() ? 0 : failed("the child's files are closed by its own communicator");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const sigset_t go = blocked(SIGUSR1);
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return failed(dlerror());
  Job job;
  job.net = static_cast<const NetV12*>(dlsym(library, "ncclNetPlugin_v12"));
  job.old = static_cast<const NetV6*>(dlsym(library, "ncclNetPlugin_v6"));
  if (job.net == nullptr || job.old == nullptr) return failed("no ncclNetPlugin_v12 or v6");
  if (job.old->init(log_line) != kSuccess) return failed("init of the older interface");
  if (const char* what = job.begin()) return failed(what);
  int status = 0;
  while (job.under_way == nullptr)
    if (job.net->isend(job.loop.sending, job.out.data(), kSize, 0, nullptr, nullptr, &job.under_way) !=
        kSuccess)
      return failed("isend");
  const pid_t pid = fork();
  if (pid == 0) exit(child(&job));  // with the handlers of an ordinary end
  if (waitpid(pid, &status, 0) != pid || status != 0) return failed("the child has failed");
  puts("forked");
  fflush(stdout);
  int signal = 0;
  sigwait(&go, &signal);
  void *data = job.in.data(), *received = nullptr;
  size_t size = kSize;
  int tag = 0;
  while (received == nullptr)
    if (job.net->irecv(job.loop.receiving, 1, &data, &size, &tag, nullptr, nullptr, &received) != kSuccess)
      return failed("irecv");
  for (void* request : {received, job.under_way})
    for (int done = 0; !done;)
      if (job.net->test(request, &done, nullptr) != kSuccess) return failed("test");
  if (const char* what = job.loop.move(job.net, job.out.data(), job.in.data(), kSize, nullptr))
    return failed(what);
  if (job.in != job.out) return failed("other data");
  job.end();
  return 0;
}
