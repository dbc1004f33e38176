// Continuous batching on llama.cpp's own library, for llama_cpp_peer.py: greedy, ends by length alone.
//
//     llama-driver MODEL.gguf THREADS
//     <-  REQUESTS, then for each: OUTPUT LENGTH ID ID ...         numbers apart by white space
//     ->  one line per request: OUTPUT times, seconds after the last number was read
//
// Each step holds a token of every sequence that decodes, then prompt tokens up to the batch, as llama-server does. The
// context has a stream of KV cache per sequence, which is faster than the unified one unless sequences share a prefix.

#include "llama.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <utility>
#include <vector>

namespace {

constexpr int kSequences = 32;
constexpr int kSequenceTokens = 1600;  // the longest workload: 1,536 + 1
constexpr int kBatch = 2048;           // llama-server's own default

struct Request {
    std::vector<llama_token> tokens;  // the prompt, then what was generated
    size_t prompt = 0;
    size_t output = 0;
    size_t computed = 0;
    std::vector<double> arrivals;

    bool done() const { return arrivals.size() == output; }
};

void add(llama_batch& batch, const Request& request, int sequence) {
    const int row = batch.n_tokens++;
    batch.token[row] = request.tokens[request.computed];
    batch.pos[row] = static_cast<llama_pos>(request.computed);
    batch.n_seq_id[row] = 1;
    batch.seq_id[row][0] = sequence;
    batch.logits[row] = request.computed + 1 == request.tokens.size();
}

[[noreturn]] void fail(const char* what) {
    std::fprintf(stderr, "llama-driver: %s\n", what);
    std::exit(1);
}

void run(llama_context* context, llama_batch& batch, std::vector<Request>& requests, int vocabulary) {
    const auto began = std::chrono::steady_clock::now();
    llama_memory_clear(llama_get_memory(context), false);
    while (!std::all_of(requests.begin(), requests.end(), [](const Request& one) { return one.done(); })) {
        batch.n_tokens = 0;
        std::vector<std::pair<Request*, int>> sampled;  // and the batch row of its logits
        for (const bool decoding : {true, false}) {
            for (size_t i = 0; i < requests.size(); ++i) {
                Request& request = requests[i];
                if (request.done() || (request.computed >= request.prompt) != decoding) continue;
                const int before = batch.n_tokens;
                while (batch.n_tokens < kBatch && request.computed < request.tokens.size()) {
                    add(batch, request, static_cast<int>(i));
                    ++request.computed;
                }
                if (batch.n_tokens > before && request.computed == request.tokens.size()) {
                    sampled.emplace_back(&request, batch.n_tokens - 1);
                }
            }
        }
        if (llama_decode(context, batch) != 0) fail("llama_decode");
        for (const auto& [request, row] : sampled) {
            const float* logits = llama_get_logits_ith(context, row);
            request->tokens.push_back(
                static_cast<llama_token>(std::max_element(logits, logits + vocabulary) - logits));
            const std::chrono::duration<double> after = std::chrono::steady_clock::now() - began;
            request->arrivals.push_back(after.count());
        }
    }
}

}  // namespace

int main(int count, char** words) {
    if (count != 3) fail("usage: llama-driver MODEL.gguf THREADS");
    llama_backend_init();
    llama_model* model = llama_model_load_from_file(words[1], llama_model_default_params());
    if (model == nullptr) fail("no model");
    llama_context_params params = llama_context_default_params();
    params.n_ctx = kSequences * kSequenceTokens;
    params.n_batch = kBatch;
    params.n_seq_max = kSequences;
    params.n_threads = params.n_threads_batch = std::atoi(words[2]);
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.kv_unified = false;
    llama_context* context = llama_init_from_model(model, params);
    if (context == nullptr) fail("no context");
    llama_batch batch = llama_batch_init(kBatch, 0, 1);
    const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));

    std::printf("%s\n", llama_print_system_info());
    std::fflush(stdout);
    size_t number = 0;
    while (std::cin >> number) {
        if (number > kSequences) fail("too many requests");
        std::vector<Request> requests(number);
        for (Request& request : requests) {
            std::cin >> request.output >> request.prompt;
            request.tokens.resize(request.prompt);
            for (llama_token& token : request.tokens) std::cin >> token;
        }
        run(context, batch, requests, vocabulary);
        for (const Request& request : requests) {
            for (const double arrival : request.arrivals) std::printf("%.6f ", arrival);
            std::printf("\n");
        }
        std::fflush(stdout);
    }
    llama_batch_free(batch);
    llama_free(context);
    llama_model_free(model);
    return 0;
}
