#include "process/connection_table.h"

#include <algorithm>
#include <cstring>

namespace fabricpulse {
namespace {

constexpr size_t kMostClosed = 1024;
constexpr uint64_t kClosedNs = 60'000'000'000;

}  // namespace

std::vector<std::shared_ptr<Connection>> ConnectionTable::all() const {
  std::lock_guard<std::mutex> lock(lock_);
  std::vector<std::shared_ptr<Connection>> all;
  all.reserve(connections_.size());
  for (auto& entry : connections_) all.push_back(entry.second);
  return all;
}

std::shared_ptr<Connection> ConnectionTable::find(uint64_t id, Direction direction) const {
  std::lock_guard<std::mutex> lock(lock_);
  auto found = connections_.find({id, direction});
  return found == connections_.end() ? nullptr : found->second;
}

void ConnectionTable::add(const std::shared_ptr<Connection>& connection, PeerRoute route) {
  std::lock_guard<std::mutex> lock(lock_);
  connections_[key(*connection)] = connection;
  routes_[key(*connection)] = std::move(route);
}

void ConnectionTable::remove(const Connection& connection) {
  std::lock_guard<std::mutex> lock(lock_);
  connections_.erase(key(connection));
  routes_.erase(key(connection));
}

void ConnectionTable::clear() {
  std::lock_guard<std::mutex> lock(lock_);
  connections_.clear();
  routes_.clear();
}

void ConnectionTable::remember_closed(const Connection& connection, const HeldState& held, uint64_t now) {
  std::lock_guard<std::mutex> lock(lock_);
  auto route = routes_.find(key(connection));
  if (route == routes_.end()) return;
  while (!closed_.empty() &&
         (closed_.size() >= kMostClosed || elapsed(now, closed_.front().at_ns) > kClosedNs))
    closed_.pop_front();
  Closed entry;
  entry.connection = connection.id();
  memcpy(entry.token, route->second.token, sizeof(entry.token));
  entry.held = held;
  entry.at_ns = now;
  closed_.push_back(entry);
}

bool ConnectionTable::find_closed(const Hello& hello, HeldState* held, uint64_t now) const {
  std::lock_guard<std::mutex> lock(lock_);
  for (const Closed& entry : closed_) {
    if (entry.connection != hello.connection || memcmp(entry.token, hello.token, sizeof(entry.token)) != 0 ||
        elapsed(now, entry.at_ns) > kClosedNs)
      continue;
    *held = entry.held;
    return true;
  }
  return false;
}

bool ConnectionTable::find_route(const Connection& connection, PeerRoute* route) const {
  std::lock_guard<std::mutex> lock(lock_);
  auto found = routes_.find(key(connection));
  if (found == routes_.end()) return false;
  *route = found->second;
  return true;
}

void ConnectionTable::refresh_route(const Connection& connection, const WireNic* nics, uint32_t count) {
  std::lock_guard<std::mutex> lock(lock_);
  auto found = routes_.find(key(connection));
  if (found == routes_.end()) return;
  std::vector<WireNic>& known = found->second.nics;
  if (count < known.size()) return;
  for (size_t i = 0; count > known.size() && i < known.size(); ++i)
    if (memcmp(known[i].address, nics[i].address, sizeof(known[i].address)) != 0) return;
  known.assign(nics, nics + count);
}

void ConnectionTable::add_listener(const std::shared_ptr<Listener>& listener) {
  std::lock_guard<std::mutex> lock(lock_);
  listeners_.erase(std::remove_if(listeners_.begin(), listeners_.end(), [](auto& l) { return l.expired(); }),
                   listeners_.end());
  listeners_.push_back(listener);
}

std::deque<std::shared_ptr<RecvConnection>> ConnectionTable::remove_listener(
    const std::shared_ptr<Listener>& listener) {
  std::deque<std::shared_ptr<RecvConnection>> orphans;
  std::lock_guard<std::mutex> lock(lock_);
  orphans.swap(listener->waiting);
  listeners_.erase(std::remove_if(listeners_.begin(), listeners_.end(),
                                  [&](auto& l) { return l.expired() || l.lock() == listener; }),
                   listeners_.end());
  return orphans;
}

std::shared_ptr<RecvConnection> ConnectionTable::accept(Listener* listener) {
  std::lock_guard<std::mutex> lock(lock_);
  auto ready = [](const std::shared_ptr<RecvConnection>& receiver) {
    ConnectionLock locked(receiver.get());
    // One whose peer has sent its BYE may hold messages still; one whose peer is lost has an error to report.
    return receiver->lanes_up() > 0 || receiver->closed_by_peer() || receiver->lost();
  };
  auto found = std::find_if(listener->waiting.begin(), listener->waiting.end(), ready);
  if (found == listener->waiting.end()) return nullptr;
  auto receiver = *found;
  listener->waiting.erase(found);
  return receiver;
}

std::shared_ptr<RecvConnection> ConnectionTable::receiver_for(
    const Hello& hello, const std::function<std::shared_ptr<RecvConnection>(const Listener&)>& make) {
  std::lock_guard<std::mutex> lock(lock_);
  const Key wanted{hello.connection, Direction::kReceive};
  auto known = connections_.find(wanted);
  if (known != connections_.end()) {
    PeerRoute& route = routes_[wanted];
    if (memcmp(route.token, hello.token, sizeof(hello.token)) != 0) return nullptr;
    route.nics.assign(hello.nics, hello.nics + hello.nic_count);
    return std::dynamic_pointer_cast<RecvConnection>(known->second);
  }
  for (auto& weak : listeners_) {
    auto listener = weak.lock();
    if (!listener || memcmp(listener->token, hello.token, sizeof(hello.token)) != 0) continue;
    auto receiver = make(*listener);
    PeerRoute route;
    route.port = hello.listen_port;
    memcpy(route.token, hello.token, sizeof(route.token));
    route.nics.assign(hello.nics, hello.nics + hello.nic_count);
    connections_[wanted] = receiver;
    routes_[wanted] = std::move(route);
    listener->waiting.push_back(receiver);
    return receiver;
  }
  return nullptr;
}

}  // namespace fabricpulse
