// KvCache for tests: pages and counts, no bytes.
#include <pybind11/stl.h>

#include "kv/kv_cache.h"
#include "testing.h"

namespace freetoken::bindings {

void register_kv(py::module_& m) {
  py::class_<SequenceKv>(m, "SequenceKv").def(py::init<>()).def_readonly("pages", &SequenceKv::pages);
  py::class_<KvSnapshot>(m, "KvSnapshot").def_readonly("tokens", &KvSnapshot::tokens).def_readonly("pages", &KvSnapshot::pages);
  py::class_<KvCache>(m, "KvCache", "windows: 0 keeps everything; one number of pages for each group.")
      .def(py::init([](const std::vector<int>& windows, const std::vector<int32_t>& pages, int page_tokens, bool prefix_cache) {
             KvCacheOptions options{.groups = {}, .pages = pages, .prefix_cache = prefix_cache};
             for (int window : windows)
               options.groups.push_back({.retention = window ? Retention::kWindow : Retention::kAll, .window = window,
                                         .page_tokens = page_tokens, .layers = {}});
             return std::make_unique<KvCache>(std::move(options));
           }),
           py::arg("windows"), py::arg("pages"), py::arg("page_tokens"), py::arg("prefix_cache"))
      .def("fits", &KvCache::fits)
      .def("available_tokens", &KvCache::available_tokens)
      .def("match", [](KvCache& c, const std::vector<int32_t>& tokens, int limit, SequenceKv& s) { return c.match(tokens, limit, &s); })
      .def("match_length", [](KvCache& c, const std::vector<int32_t>& tokens, int limit) { return c.match_length(tokens, limit); })
      .def("append", [](KvCache& c, SequenceKv& s, int from, int to) { return c.append(&s, from, to); })
      .def("commit", [](KvCache& c, SequenceKv& s, const std::vector<int32_t>& tokens, int computed) { c.commit(&s, tokens, computed); })
      .def("truncate", [](KvCache& c, SequenceKv& s, int to) { c.truncate(&s, to); })
      .def("release", [](KvCache& c, SequenceKv& s, const std::vector<int32_t>& tokens, int computed) { c.release(&s, tokens, computed); })
      .def("snapshot", &KvCache::snapshot)
      .def("restore", [](KvCache& c, const KvSnapshot& snapshot, SequenceKv& s) { return c.restore(snapshot, &s); })
      .def("drop", [](KvCache& c, KvSnapshot& snapshot) { c.release(&snapshot); })
      .def("spill", [](const KvCache& c, const SequenceKv& s, int tokens) {
             std::vector<std::tuple<int, int, int32_t, int>> items;
             for (const SpillItem& i : c.gather_for_spill(s, tokens)) items.emplace_back(i.group, i.page_index, i.page, i.tokens);
             return items;
           })
      .def("take_copies", [](KvCache& c) {
             std::vector<std::tuple<int, int32_t, int32_t>> copies;
             for (const PageCopy& p : c.take_copies()) copies.emplace_back(p.group, p.from, p.to);
             return copies;
           })
      .def("clear_cache", &KvCache::clear_cache)
      .def("stats", [](const KvCache& c) {
             const KvCacheStats s = c.stats();
             return std::make_tuple(s.pages_total, s.pages_free, s.pages_cached, s.evicted_pages);
           })
      .def("check", [](const KvCache& c, const std::vector<const SequenceKv*>& sequences, const std::vector<const KvSnapshot*>& snapshots) {
             return c.check(sequences, snapshots);
           });
}

}  // namespace freetoken::bindings
