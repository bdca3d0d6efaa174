// What the reports have in common as HTML pages: one file that needs nothing else, readable on a
// phone, light and dark, with the JSON document that it was made from. No script runs in it.
#ifndef SLUICE_TOOLS_HTML_PAGE_H_
#define SLUICE_TOOLS_HTML_PAGE_H_

#include <string>
#include <string_view>

namespace sluice {

// From the doctype to the beginning of the body; `title` is plain text.
std::string BeginPage(std::string_view title);
// The document and the end of the page.
std::string EndPage(std::string_view json);

}  // namespace sluice

#endif  // SLUICE_TOOLS_HTML_PAGE_H_
