"""QNN's failures, on the host and on the device. Sources: our own children, and public issue threads."""

from __future__ import annotations

from edgeforge.backends.faults import SEEN_HERE, Fault
from edgeforge.backends.qnn import wheel

_THREAD = "seen in public threads, not reproduced here: "
_APPS, _MODELS = "qualcomm/ai-hub-apps", "qualcomm/ai-hub-models"
_SAME_SDK = ("push libQnnHtp.so, libQnnSystem.so, libQnnHtpV<arch>Stub.so and the unsigned libQnnHtpV<arch>Skel.so of "
             "one QAIRT release, at least as new as the binary's (`edgeforge inspect part.bin` says which)")
_SKEL_PATH = ("put libQnnHtpV<arch>Skel.so for this chip into the app's folder and set ADSP_LIBRARY_PATH to exactly "
              "that folder (some firmware takes a list of folders for one name), LD_LIBRARY_PATH likewise")

FAULTS = (
    Fault("node not supported", ("3110", "6003"),
          r"Unsupported nodes in QNN EP|backendValidateOpConfig\(\) failed|fallback to CPU EP has been",
          "the HTP compiler does not take a node: no such operator, or not with these dtypes (a convolution whose "
          "input and output differ in type, weights per channel on another axis, rank above 5, no QuantizeLinear)",
          "change the node that is named, or leave it out; `edgeforge bisect` cuts the model down to it", SEEN_HERE),
    Fault("SoC not known", (), r"QNN_DEVICE_ERROR_INVALID_CONFIG",
          "this QAIRT release does not know the SoC number",
          "take a chip from the table, or a newer onnxruntime-qnn", SEEN_HERE),
    Fault("damaged binary", ("30010",),
          r"Failed to get context binary info|Empty cache file|not a context binary, or a damaged",
          "the context binary is truncated, empty or not one at all",
          "compare its size with the one in the bundle's stage.json, and copy it again", SEEN_HERE),
    Fault("missing binary", (), r"file path in ep_cache_context does not exist|\.bin is missing",
          "the .bin that the .onnx wrapper names is not beside it",
          "copy both files of a part into one folder", SEEN_HERE),
    Fault("shared weights on x86", ("1000",), r"Shared weights buffer isn't supported|Shared weights buffer",
          "a device binary with shared weights was given to the x86 emulator, which cannot load it and often dies of "
          "SIGSEGV", "use the unshared twin (the bundle's x86/ folder); the device binary is for the phone", SEEN_HERE),
    Fault("damaged library", (),
          r"file too short|\.so is truncated|invalid ELF header|cannot read file data|wrong ELF class"
          r"|cannot open shared object|no lib\S+\.so in|is not a Linux|is built for",
          "a library of onnxruntime-qnn is missing, truncated, or built for another machine",
          f"pip install --force-reinstall --no-deps {wheel.DISTRIBUTION}=={wheel.TESTED} (Linux x86-64)", SEEN_HERE),
    Fault("binary newer or for another chip", ("5000",), r"has (soc|arch|qairt) \S+, the other binaries",
          "the binary was compiled for another SoC, or by a newer QAIRT than the one that loads it",
          f"compare `edgeforge inspect part.bin` with the phone's chip; {_SAME_SDK}",
          _THREAD + f"{_APPS}#148, {_APPS}#63"),
    Fault("binary refused", ("5005",), "",
          "the device refuses the context: VTCM planned larger than it offers, another SoC, or (on v68) a format that "
          "it does not have",
          "compile for the exact chip; a smaller vtcm_mb helped in one thread",
          _THREAD + f"{_MODELS}#192, {_MODELS}#289"),
    Fault("binary info version", (), r"Unknown QNN BinaryInfo version",
          "the program reads an older form of context binary than this one has", _SAME_SDK,
          _THREAD + "pytorch/executorch"),
    Fault("graph not finished", (), r"Failed to finalize QNN graph",
          "on the host: the HTP compiler took every node alone and found no layout for them together; error 1002, "
          "out of memory by its name, says nothing about memory there (a signed 8-bit cache does it)",
          "`edgeforge bisect` on the failed job cuts it down to the nodes; give one of them another grid or form",
          _THREAD + "onnxruntime-qnn itself, of IsInf"),
    Fault("no room in a process domain", ("1002",), r"Failed to find available PD|SMMU.*mmap|fastrpc mmap",
          "the NPU's process domain (about 4 GiB of addresses, less on old chips) has no room for this binary's "
          "weights and buffers beside those already loaded",
          "smaller parts (`split.part_bytes`), a shorter `target.context`, fewer bits a weight",
          _THREAD + f"{_MODELS}#332, pytorch/executorch#18862"),
    Fault("out of memory on the device", ("1007", "1009"), "",
          "the device has too little memory, or its process domain has, for the next binary",
          "smaller parts, a shorter context, close other NPU users", _THREAD + f"{_MODELS}#101, {_MODELS}#168"),
    Fault("buffer not registered", ("8002",), r"memRegister",
          "an input or output buffer could not be mapped for the NPU: too little memory, or too many mapped bytes",
          "a shorter `target.context` (the KV cache is most of it), smaller parts",
          _THREAD + f"{_MODELS}#332"),
    Fault("skel not found", ("14001", "4000", "1008", "1003", "0x80000406", "0x80000416", "0x80000600"),
          r"Failed to load skel|Unable to load Skel|Unable to load Remote symbols|qnn_open failed|"
          r"Failed to retrieve skel build id|remote_handle64_open failed",
          "the NPU could not load QNN's skel library: it is not on ADSP_LIBRARY_PATH, it is for another Hexagon "
          "version, the vendor's own copy was found first, or the app may not open the NPU (SELinux, signed domain)",
          f"{_SKEL_PATH}; {_SAME_SDK}; in an Android app add <uses-native-library android:name=\"libcdsprpc.so\"/>",
          _THREAD + f"{_APPS}#158, {_APPS}#35, {_APPS}#31, qualcomm/fastrpc#379, UbiquitousLearning/mllm#341, "
          "pytorch/executorch#21586, pytorch/executorch#2788, qualcomm/qai-appbuilder#47"),
    Fault("stub and library differ", ("1008",), r"Stub lib id mismatch|Skel lib id mismatch",
          "libQnnHtp.so and the stub (or skel) come from two QAIRT releases", _SAME_SDK,
          _THREAD + "pytorch/executorch#8762, qualcomm/qai-appbuilder#14"),
    Fault("graph too large", (), r"requires estimated allocation of \d+ KB, limit is \d+ KB",
          "a part needs more of the NPU's address space than it has",
          "smaller parts (`split.part_bytes`) or a shorter `target.context`",
          _THREAD + f"{_MODELS}#129, pytorch/executorch#15954"),
)
