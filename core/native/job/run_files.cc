#include "job/run_files.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "fabricpulse/create_exclusive.h"

namespace fabricpulse {

bool make_directories(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1))
    mkdir(path.substr(0, slash).c_str(), 0755);
  return mkdir(path.c_str(), 0755) == 0 || errno == EEXIST;
}

uint64_t pid_namespace() {
  struct stat status {};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

uint64_t process_start_ticks(uint32_t pid) {
  char path[64];
  snprintf(path, sizeof(path), "/proc/%u/stat", pid);
  int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[1024];
  ssize_t got = read(fd, text, sizeof(text) - 1);
  ::close(fd);
  if (got <= 0) return 0;
  text[got] = '\0';
  char* at = strrchr(text, ')');  // the name may contain anything; fields are counted behind it
  for (int field = 2; at != nullptr && field < 22; ++field) at = strchr(at + 1, ' ');
  return at == nullptr ? 0 : strtoull(at + 1, nullptr, 10);
}

std::string process_file_name() {
  char name[48];
  snprintf(name, sizeof(name), "%u-%llx", static_cast<unsigned>(getpid()),
           static_cast<unsigned long long>(pid_namespace()));
  return name;
}

NewRunFile::NewRunFile(const std::string& directory, const std::string& name) {
  fd_ = create_exclusive(directory + "/." + name, &temporary_);
  if (fd_ >= 0)
    fchmod(fd_, 0644);
  else
    temporary_.clear();
}

NewRunFile::~NewRunFile() {
  if (!temporary_.empty()) unlink(temporary_.c_str());
  if (fd_ >= 0) ::close(fd_);
}

bool NewRunFile::put_in_place(const std::string& path) {
  if (rename(temporary_.c_str(), path.c_str()) != 0) return false;
  temporary_.clear();
  return true;
}

int NewRunFile::release() { return std::exchange(fd_, -1); }

}  // namespace fabricpulse
