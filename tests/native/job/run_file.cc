// Makes files that others map (core/native/job/run_files.h), by lines on standard input, in the folder that it is given:
// "make NAME", "place NAME" (what was made last becomes NAME), "release", "drop" (what was made last). Answers each with
// "ok" or what errno says; at the end it says whether the descriptor that was released is open.
#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <optional>
#include <string>

#include "job/run_files.h"

using namespace fabricpulse;

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string folder = argv[1];
  std::optional<NewRunFile> file;
  int released = -1;
  std::string command, name;
  while (std::cin >> command) {
    errno = 0;
    bool well = true;
    if (command == "make") {
      std::cin >> name;
      file.emplace(folder, name);
      well = file->fd() >= 0;
    } else if (!file) {
      return 2;
    } else if (command == "place") {
      std::cin >> name;
      well = file->put_in_place(folder + "/" + name);
    } else if (command == "release") {
      released = file->release();
    } else {
      file.reset();
    }
    std::cout << (well ? "ok" : strerror(errno)) << std::endl;
  }
  file.reset();
  if (released >= 0) std::cout << (fcntl(released, F_GETFD) >= 0 ? "open" : "closed") << std::endl;
  return 0;
}
