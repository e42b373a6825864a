package conductor

// Some engines publish no KV events: llama.cpp, TGI, TensorRT-LLM without streaming, vLLM where events are
// off. Such an engine is registered with events "none". Nothing is connected to, and what it holds is known
// only from what routers report. Type then says what its blocks are hashed like, and any engine without a
// type of its own is Standard.
