#include "control/json.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>

namespace fabricpulse {
namespace {

constexpr size_t kMaxFields = 32;

class Parser {
 public:
  Parser(const char* text, size_t size) : at_(text), end_(text + size) {}

  bool object(JsonObject* out, std::string* why) {
    if (!take('{')) return fail(why, "an object is expected");
    if (!take('}')) {
      do {
        std::string name;
        space();
        if (!string(&name)) return fail(why, "a field name is expected");
        if (!take(':')) return fail(why, "':' is expected after \"" + name + "\"");
        if (out->count(name) || out->size() >= kMaxFields)
          return fail(why, "field \"" + name + "\" is given twice, or too many fields");
        if (!value(&(*out)[name]))
          return fail(why, "the value of \"" + name + "\" is not a string, an integer, true, false or null");
      } while (take(','));
      if (!take('}')) return fail(why, "'}' is expected");
    }
    space();
    return at_ == end_ ? true : fail(why, "there is something behind the object");
  }

 private:
  static bool fail(std::string* why, const std::string& text) {
    *why = text;
    return false;
  }
  void space() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\n' || *at_ == '\r')) ++at_;
  }
  bool take(char c) {
    space();
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }
  bool literal(const char* text) {
    const char* p = at_;
    while (*text) {
      if (p == end_ || *p != *text) return false;
      ++p;
      ++text;
    }
    at_ = p;
    return true;
  }
  bool value(JsonValue* out) {
    space();
    if (at_ == end_) return false;
    if (*at_ == '"') {
      out->kind = JsonValue::Kind::kString;
      return string(&out->text);
    }
    if (literal("null")) return true;
    if (literal("true") || literal("false")) {
      out->kind = JsonValue::Kind::kBool;
      out->boolean = at_[-1] == 'e' && at_[-2] == 'u';
      return true;
    }
    return integer(out);
  }
  bool integer(JsonValue* out) {
    bool negative = at_ < end_ && *at_ == '-';
    if (negative) ++at_;
    if (at_ == end_ || *at_ < '0' || *at_ > '9') return false;
    uint64_t number = 0;
    while (at_ < end_ && *at_ >= '0' && *at_ <= '9') {
      if (number > (UINT64_C(1) << 63) / 10) return false;
      number = number * 10 + static_cast<uint64_t>(*at_++ - '0');
    }
    if (number > INT64_MAX) return false;
    if (at_ < end_ && (*at_ == '.' || *at_ == 'e' || *at_ == 'E')) return false;
    out->kind = JsonValue::Kind::kInteger;
    out->integer = negative ? -static_cast<int64_t>(number) : static_cast<int64_t>(number);
    return true;
  }
  bool hex4(uint32_t* out) {
    *out = 0;
    for (int i = 0; i < 4; ++i) {
      if (at_ == end_) return false;
      char c = *at_++;
      uint32_t digit;
      if (c >= '0' && c <= '9')
        digit = static_cast<uint32_t>(c - '0');
      else if (c >= 'a' && c <= 'f')
        digit = static_cast<uint32_t>(c - 'a' + 10);
      else if (c >= 'A' && c <= 'F')
        digit = static_cast<uint32_t>(c - 'A' + 10);
      else
        return false;
      *out = *out * 16 + digit;
    }
    return true;
  }
  static void utf8(uint32_t code, std::string* out) {
    auto put = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
    if (code < 0x80) {
      put(code);
    } else if (code < 0x800) {
      put(0xc0 | code >> 6);
      put(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
      put(0xe0 | code >> 12);
      put(0x80 | (code >> 6 & 0x3f));
      put(0x80 | (code & 0x3f));
    } else {
      put(0xf0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3f));
      put(0x80 | (code >> 6 & 0x3f));
      put(0x80 | (code & 0x3f));
    }
  }
  bool string(std::string* out) {
    if (at_ == end_ || *at_ != '"') return false;
    ++at_;
    while (at_ < end_) {
      unsigned char c = static_cast<unsigned char>(*at_++);
      if (c == '"') return true;
      if (c < 0x20) return false;
      if (c != '\\') {
        out->push_back(static_cast<char>(c));
        continue;
      }
      if (at_ == end_) return false;
      switch (*at_++) {
        case '"':
          out->push_back('"');
          break;
        case '\\':
          out->push_back('\\');
          break;
        case '/':
          out->push_back('/');
          break;
        case 'b':
          out->push_back('\b');
          break;
        case 'f':
          out->push_back('\f');
          break;
        case 'n':
          out->push_back('\n');
          break;
        case 'r':
          out->push_back('\r');
          break;
        case 't':
          out->push_back('\t');
          break;
        case 'u': {
          uint32_t code, low;
          if (!hex4(&code)) return false;
          if (code >= 0xdc00 && code < 0xe000) return false;
          if (code >= 0xd800 && code < 0xdc00) {
            if (end_ - at_ < 2 || at_[0] != '\\' || at_[1] != 'u') return false;
            at_ += 2;
            if (!hex4(&low) || low < 0xdc00 || low >= 0xe000) return false;
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
          }
          utf8(code, out);
          break;
        }
        default:
          return false;
      }
    }
    return false;
  }

  const char* at_;
  const char* end_;
};

}  // namespace

bool valid_utf8(const char* text, size_t size) {
  const auto* at = reinterpret_cast<const unsigned char*>(text);
  const unsigned char* const end = at + size;
  while (at < end) {
    unsigned char first = *at++;
    if (first < 0x80) continue;
    int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
    if (first < 0xc2 || first > 0xf4 || end - at < more) return false;
    uint32_t code = first & (0x3f >> more);
    for (int i = 0; i < more; ++i) {
      if ((at[i] & 0xc0) != 0x80) return false;
      code = code << 6 | (at[i] & 0x3f);
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000) || (more == 2 && code < 0x800) ||
        (more == 3 && code < 0x10000))
      return false;
    at += more;
  }
  return true;
}

bool parse_json_object(const char* text, size_t size, JsonObject* out, std::string* why) {
  return Parser(text, size).object(out, why);
}

void JsonWriter::separate() {
  if (out_.empty()) return;
  char last = out_.back();
  if (last != '{' && last != '[' && last != ':') out_.push_back(',');
}

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  out_.push_back(bracket);
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  out_.push_back(bracket);
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  out_.push_back('"');
  out_.append(name);
  out_.append("\":", 2);
  return *this;
}

JsonWriter& JsonWriter::string(std::string_view value) {
  separate();
  out_.push_back('"');
  size_t plain = 0;  // from here on nothing needs an escape so far
  for (size_t at = 0; at < value.size(); ++at) {
    const auto c = static_cast<unsigned char>(value[at]);
    const bool control = c < 0x20 || c == 0x7f;
    if (!control && c != '"' && c != '\\') continue;
    out_.append(value, plain, at - plain);
    plain = at + 1;
    char escape[8];
    snprintf(escape, sizeof(escape), control ? "\\u%04x" : "\\%c", c);
    out_ += escape;
  }
  out_.append(value, plain);
  out_.push_back('"');
  return *this;
}

template <typename Number>
JsonWriter& JsonWriter::digits(Number value) {
  separate();
  char text[24];
  out_.append(text, static_cast<size_t>(std::to_chars(text, text + sizeof(text), value).ptr - text));
  return *this;
}

JsonWriter& JsonWriter::number(int64_t value) { return digits(value); }

JsonWriter& JsonWriter::unsigned_number(uint64_t value) { return digits(value); }

JsonWriter& JsonWriter::boolean(bool value) {
  separate();
  out_ += value ? "true" : "false";
  return *this;
}

JsonWriter& JsonWriter::null() {
  separate();
  out_ += "null";
  return *this;
}

JsonWriter& JsonWriter::raw(std::string_view json) {
  separate();
  out_ += json;
  return *this;
}

}  // namespace fabricpulse
