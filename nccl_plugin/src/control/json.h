// As much JSON as the control socket needs: requests are one flat object of strings, integers, booleans and
// nulls.
#ifndef FABRICPULSE_CONTROL_JSON_H_
#define FABRICPULSE_CONTROL_JSON_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace fabricpulse {

struct JsonValue {
  enum class Kind { kNull, kBool, kInteger, kString } kind = Kind::kNull;
  bool boolean = false;
  int64_t integer = 0;
  std::string text;
};

using JsonObject = std::map<std::string, JsonValue>;

// The member of that name, if it is of that kind; else nullptr.
inline const JsonValue* member(const JsonObject& object, const char* name, JsonValue::Kind kind) {
  auto found = object.find(name);
  return found != object.end() && found->second.kind == kind ? &found->second : nullptr;
}

// Whether it is UTF-8 (RFC 3629: no surrogates, nothing longer than needed). What is not may not be echoed.
bool valid_utf8(const char* text, size_t size);

// False if `text` is not exactly one flat object; `why` names the place.
bool parse_json_object(const char* text, size_t size, JsonObject* out, std::string* why);

// Builds an answer; commas are put where they belong.
class JsonWriter {
 public:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  // name : needs no escape. Of others: foreign_key().
  JsonWriter& key(std::string_view name);
  JsonWriter& foreign_key(std::string_view name) {
    string(name);
    out_.push_back(':');
    return *this;
  }
  JsonWriter& string(std::string_view value);
  JsonWriter& number(int64_t value);
  JsonWriter& unsigned_number(uint64_t value);
  JsonWriter& boolean(bool value);
  JsonWriter& null();
  // Text that is JSON already.
  JsonWriter& raw(std::string_view json);

  JsonWriter& field(std::string_view name, std::string_view value) { return key(name).string(value); }
  JsonWriter& field(std::string_view name, const char* value) { return key(name).string(value); }
  JsonWriter& field(std::string_view name, uint64_t value) { return key(name).unsigned_number(value); }
  JsonWriter& field(std::string_view name, bool value) { return key(name).boolean(value); }

  const std::string& text() const { return out_; }
  // The writer is empty then.
  std::string take() { return std::exchange(out_, {}); }

 private:
  template <typename Number>
  JsonWriter& digits(Number value);
  void separate();
  std::string out_;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CONTROL_JSON_H_
