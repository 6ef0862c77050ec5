// Two processes with one connection, driven by files in a folder:
//
//   plugin_close_host LIBRARY receive FOLDER   writes `handle`, accepts, writes `accepted`, receives one
//                                              message, closes, writes `closed`, and lives until `end` is
//                                              there
//   plugin_close_host LIBRARY truncate FOLDER  the same with room for half of the message: writes `accepted` when the
//                                              receive is posted, ends with 0 if test() has refused the
//                                              message, and closes nothing before `end` is there
//   plugin_close_host LIBRARY send FOLDER      connects, writes `connected`, waits for `go`, sends, and
//                                              writes `result`: 0, or what test() has returned
//   plugin_close_host LIBRARY fork FOLDER      connects to itself and forks; writes into `child` how many
//                                              sockets the child has; sends a message to itself, writes
//                                              `result`
//   plugin_close_host LIBRARY leave FOLDER     connects to itself, and closes the receiving end before the sending one has
//                                              been asked for again; writes `result`: what becomes of that, and of a
//                                              message on it
//   plugin_close_host LIBRARY abandon FOLDER   gives up connections to itself before it has them: by the end of their
//                                              context, by asking no more (FABRICPULSE_PEER_TIMEOUT_S), and by an
//                                              error of connect(); writes into `result` how many lanes are left after each
//   plugin_close_host LIBRARY killed FOLDER    connects to a child that is killed before it is asked whether the
//                                              connection is there; writes `result`: what connect() has returned, and
//                                              how often the log has said why
//
// tests/integration/plugin/test_close.py plays them.
#include <dirent.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "abi/net.h"

using namespace fabricpulse::abi;

namespace {

constexpr size_t kBytes = 8192;
std::string folder;
int warnings = 0;  // what is logged by the service thread is read after it

void log_line(int level, unsigned long, const char*, int, const char* format, ...) {
  if (level > 2) return;
  __atomic_add_fetch(&warnings, 1, __ATOMIC_SEQ_CST);
  fprintf(stderr, "%s\n", format);
}

void write_file(const std::string& name, const std::string& text) {
  std::string path = folder + "/" + name;
  std::ofstream(path + ".new", std::ios::binary) << text;
  rename((path + ".new").c_str(), path.c_str());
}

std::string wait_for(const std::string& name) {
  for (;; usleep(1000)) {
    std::ifstream file(folder + "/" + name, std::ios::binary);
    if (file) return std::string(std::istreambuf_iterator<char>(file), {});
  }
}

bool there(const char* name) { return access((folder + "/" + name).c_str(), F_OK) == 0; }

// The other end polls its lanes as long as this is asked.
Result finish(const NetV12* net, void* request, int* size) {
  for (int done = 0;; usleep(200)) {
    Result result = net->test(request, &done, size);
    if (result != kSuccess || done) return result;
  }
}

void* begin_receive(const NetV12* net, void* comm, std::vector<char>* into) {
  void *memory = nullptr, *request = nullptr, *data = into->data();
  size_t room = into->size();
  int tag = 0;
  net->reg_mr(comm, into->data(), into->size(), kPointerHost, &memory);
  while (request == nullptr)
    if (net->irecv(comm, 1, &data, &room, &tag, &memory, nullptr, &request) != kSuccess) exit(3);
  return request;
}

void* begin_send(const NetV12* net, void* comm, std::vector<char>* from) {
  void *memory = nullptr, *request = nullptr;
  net->reg_mr(comm, from->data(), from->size(), kPointerHost, &memory);
  while (request == nullptr)
    if (net->isend(comm, from->data(), from->size(), 0, memory, nullptr, &request) != kSuccess) exit(3);
  return request;
}

int receive(const NetV12* net, void* context, bool truncate) {
  char handle[kHandleBytes] = {};
  void *listener = nullptr, *comm = nullptr, *unused = nullptr;
  if (net->listen(context, 0, handle, &listener) != kSuccess) return 3;
  write_file("handle", std::string(handle, sizeof(handle)));
  for (; comm == nullptr; usleep(200))
    if (net->accept(listener, &comm, &unused) != kSuccess) return 3;
  std::vector<char> data(truncate ? kBytes / 2 : kBytes);
  int size = 0;
  if (truncate) {
    void* request = begin_receive(net, comm, &data);
    write_file("accepted", "");
    Result result = finish(net, request, &size);
    while (!there("end")) usleep(1000);
    return result == kInvalidUsage ? 0 : 4;
  }
  write_file("accepted", "");
  if (finish(net, begin_receive(net, comm, &data), &size) != kSuccess || size != kBytes) return 4;
  if (net->close_recv(comm) != kSuccess) return 5;
  write_file("closed", "");
  while (!there("end")) usleep(1000);
  return 0;
}

int send(const NetV12* net, void* context) {
  char handle[kHandleBytes] = {};
  void *comm = nullptr, *unused = nullptr;
  std::string text = wait_for("handle");
  memcpy(handle, text.data(), sizeof(handle));
  for (; comm == nullptr; usleep(200))
    if (net->connect(context, 0, handle, &comm, &unused) != kSuccess) return 3;
  write_file("connected", "");
  wait_for("go");
  std::vector<char> data(kBytes, 'x');
  int size = 0;
  Result result = finish(net, begin_send(net, comm, &data), &size);
  write_file("result", std::to_string(static_cast<int>(result)));
  net->close_send(comm);
  return 0;
}

int option(int fd, int name) {
  int value = -1;
  socklen_t size = sizeof(value);
  return getsockopt(fd, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
}

// How many descriptors of this process `counts`.
int descriptors(bool (*counts)(int fd)) {
  int count = 0;
  DIR* dir = opendir("/proc/self/fd");
  while (dirent* entry = readdir(dir))
    if (entry->d_name[0] != '.') count += counts(static_cast<int>(strtol(entry->d_name, nullptr, 10)));
  closedir(dir);
  return count;
}

// Lanes, listeners and control sockets, but not those by which the service thread asks the kernel about a NIC: they are
// there for a moment, at any time.
int sockets() {
  return descriptors([](int fd) {
    const int type = option(fd, SO_TYPE);
    return type == SOCK_STREAM || type == SOCK_SEQPACKET;
  });
}

int lanes() {
  return descriptors([](int fd) {
    const int domain = option(fd, SO_DOMAIN);
    return (domain == AF_INET || domain == AF_INET6) && option(fd, SO_TYPE) == SOCK_STREAM &&
           option(fd, SO_ACCEPTCONN) == 0;
  });
}

int forks(const NetV12* net, void* context) {
  char handle[kHandleBytes] = {};
  void *listener = nullptr, *in = nullptr, *out = nullptr, *unused = nullptr;
  if (net->listen(context, 0, handle, &listener) != kSuccess) return 3;
  for (; in == nullptr || out == nullptr; usleep(200)) {
    if (out == nullptr && net->connect(context, 0, handle, &out, &unused) != kSuccess) return 3;
    if (in == nullptr && net->accept(listener, &in, &unused) != kSuccess) return 3;
  }
  const int before = sockets();
  pid_t child = fork();
  if (child == 0) {
    write_file("child", std::to_string(before) + " " + std::to_string(sockets()));
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  std::vector<char> received(kBytes), data(kBytes, 'x');
  void *receiving = begin_receive(net, in, &received), *sending = begin_send(net, out, &data);
  int size = 0;
  Result result = finish(net, receiving, &size);
  if (result == kSuccess) result = finish(net, sending, &size);
  write_file("result", std::to_string(static_cast<int>(result)));
  return received == data ? 0 : 6;
}

int leaves(const NetV12* net, void* context) {
  char handle[kHandleBytes] = {};
  void *listener = nullptr, *in = nullptr, *out = nullptr, *unused = nullptr;
  if (net->listen(context, 0, handle, &listener) != kSuccess) return 3;
  if (net->connect(context, 0, handle, &out, &unused) != kSuccess || out != nullptr) return 3;
  for (; in == nullptr; usleep(200))
    if (net->accept(listener, &in, &unused) != kSuccess) return 3;
  if (net->close_recv(in) != kSuccess || net->close_listen(listener) != kSuccess) return 5;
  usleep(300'000);  // its farewell is on the way; nobody tells when it is here
  Result result = kSuccess;
  for (int tries = 0; tries < 25'000 && result == kSuccess && out == nullptr; ++tries, usleep(200))
    result = net->connect(context, 0, handle, &out, &unused);
  if (result == kSuccess && out == nullptr) return 7;
  std::vector<char> data(kBytes, 'x');
  void *memory = nullptr, *request = nullptr;
  if (result == kSuccess) result = net->reg_mr(out, data.data(), data.size(), kPointerHost, &memory);
  while (result == kSuccess && request == nullptr)
    result = net->isend(out, data.data(), data.size(), 0, memory, nullptr, &request);
  int size = 0;
  if (result == kSuccess) result = finish(net, request, &size);
  write_file("result", std::to_string(static_cast<int>(result)));
  return out == nullptr || net->close_send(out) == kSuccess ? 0 : 5;
}

// How many lanes are left: 0 as soon as none is, another number after ten seconds.
int left_over() {
  int left = lanes();
  for (int tries = 0; tries < 10'000 && left > 0; ++tries, left = lanes()) usleep(1000);
  return left;
}

int abandons(const NetV12* net, void* context) {
  char first[kHandleBytes] = {}, handle[kHandleBytes] = {};
  void *listener = nullptr, *out = nullptr, *unused = nullptr, *other = nullptr;
  if (net->listen(context, 0, first, &listener) != kSuccess) return 3;
  std::string said;
  // Begins a connection and lets it have its lanes; NCCL would ask again now.
  auto begin = [&](void* of) {
    memcpy(handle, first, sizeof(handle));
    if (net->connect(of, 0, handle, &out, &unused) != kSuccess || out != nullptr) exit(3);
    int made = lanes();
    for (int tries = 0; tries < 10'000 && made < 4; ++tries, made = lanes()) usleep(1000);
    said += std::to_string(made > 0) + " ";
  };
  Config config{-1};
  if (net->init(&other, 2, &config, log_line, nullptr) != kSuccess) return 3;
  begin(other);
  if (net->finalize(other) != kSuccess) return 5;
  said += std::to_string(left_over()) + " ";
  begin(context);
  said += std::to_string(left_over()) + " ";
  if (net->connect(context, 0, handle, &out, &unused) == kSuccess) return 6;  // too late
  write_file("result", said + std::to_string(left_over()));
  return net->close_listen(listener) == kSuccess ? 0 : 5;
}

int killed(const NetV12* net) {
  void *context = nullptr, *listener = nullptr, *out = nullptr, *unused = nullptr;
  char handle[kHandleBytes] = {};
  Config config{-1};
  const pid_t child = fork();
  if (net->init(&context, 1, &config, log_line, nullptr) != kSuccess) return 2;
  if (child == 0) {
    if (net->listen(context, 0, handle, &listener) != kSuccess) return 3;
    write_file("handle", std::string(handle, sizeof(handle)));
    pause();
  }
  memcpy(handle, wait_for("handle").data(), sizeof(handle));
  if (net->connect(context, 0, handle, &out, &unused) != kSuccess || out != nullptr) return 3;
  for (int tries = 0; tries < 10'000 && lanes() == 0; ++tries) usleep(1000);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  Result result = kSuccess;
  for (int tries = 0; tries < 200 && result == kSuccess && out == nullptr; ++tries) {
    usleep(100'000);  // the service thread finds out first
    result = net->connect(context, 0, handle, &out, &unused);
  }
  write_file("result", std::to_string(static_cast<int>(result)) + " " +
                           std::to_string(__atomic_load_n(&warnings, __ATOMIC_SEQ_CST)));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  folder = argv[3];
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  auto* net = static_cast<const NetV12*>(dlsym(library, "ncclNetPlugin_v12"));
  void* context = nullptr;
  Config config{-1};
  if (net != nullptr && strcmp(argv[2], "killed") == 0) return killed(net);
  if (net == nullptr || net->init(&context, 1, &config, log_line, nullptr) != kSuccess) return 2;
  if (strcmp(argv[2], "receive") == 0) return receive(net, context, false);
  if (strcmp(argv[2], "truncate") == 0) return receive(net, context, true);
  if (strcmp(argv[2], "send") == 0) return send(net, context);
  if (strcmp(argv[2], "leave") == 0) return leaves(net, context);
  if (strcmp(argv[2], "abandon") == 0) return abandons(net, context);
  return forks(net, context);
}
