"""The known messages about what a program needs on a node, beside Slurm and GPUs: one table.

Modules, conda, containers, Python packages, shared libraries, MPI, HDF5 and the internet. The
format is described in `known_messages`.
"""

TABLE = r"""
[no-internet]
cues = URL fetch failure on |Max retries exceeded|urlopen error|NewConnectionError|libcurl code
    |We couldn't connect to|Could not resolve host|curl: (|wget: |ProxyError|ailed to connect to
cause = The node does not reach this host. Compute nodes often have no connection to the internet.
remedy = Download data and weights on the login node, into a folder that all nodes share, and read
    them there (Keras: KERAS_HOME; Hugging Face: HF_HOME and HF_HUB_OFFLINE=1). If the site has a
    proxy for downloads, set https_proxy, and no_proxy for the nodes of the job.
pattern = URL fetch failure on https?://(?P<address>[\w.-]{1,255})[^\w.-].{0,400}: None --[ ]
    |(?:Max retries exceeded|NewConnectionError).{1,600}(?:Name or service not known|ProxyError
    |Temporary failure in name|Network is unreachable|timed out|No route to host|Failed to resolve)
    |<urlopen error .{0,60}(?:Name or service not known|Temporary failure in name|No route to host
    |Network is unreachable|timed out)
    |We couldn't connect to 'https?://|Could not resolve host: (?!metadata\.google)
    |libcurl code (?:5|6|7|28) (?!.{0,200}metadata\.google)
    |curl: \((?:5|6|7|28)\)[ ]
    |(?:^|: )wget: (?:unable to resolve|Host-Adresse|impossible de r|failed: )

[conda-not-initialised]
cues = conda init|Shell not initialized|properly configured to use 'conda activate'
cause = The shell of the batch file does not know conda activate, so the environment is not active.
remedy = Before conda activate: source "$$(conda info --base)/etc/profile.d/conda.sh". With mamba:
    eval "$$(mamba shell hook --shell bash)". Without either: export PATH=ENVIRONMENT/bin:$$PATH
pattern = Run 'conda init' before|properly configured to use 'conda activate'|Shell not initialized
hides = module-missing command-not-found

[conda-environment-missing]
cues = EnvironmentNameNotFound|EnvironmentLocationNotFound|Not a conda environment
    |prefix does not exist at
cause = conda does not find this environment on the node.
remedy = srun conda env list shows those that it finds. Give its folder instead of its name, on a
    disk that all nodes share: conda activate /path/to/environment
hides = module-missing command-not-found

[module-not-loaded]
cues = Lmod has detected the following error|Unable to locate a modulefile|nable to load module
cause = The site's module command did not load a module: no such name or version on this node, or
    another module has to be loaded first.
remedy = module spider NAME (Lmod) or module avail NAME shows what there is, and what it needs.
    Nodes of different kinds may have different modules.
hides = module-missing command-not-found

[windows-line-ends]
cues = $$'\r'|DOS line breaks
cause = The lines of the file end as on Windows.
remedy = Convert it: sed -i 's/\r$$//' FILE
pattern = \$$'\\r': command not found|contains DOS line breaks
hides = command-not-found

[container-image-refused]
cues = returned error code: |toomanyrequests|status code from registry|unauthorized:
    |manifest unknown
cause = The registry does not give the image: the name is wrong, it needs a login (401, 403, 404),
    or it limits how often it may be asked (429).
remedy = Import the image once, into a file that all nodes share (enroot import, apptainer pull),
    and start that file. pyxis takes the name of a file only with / or ./ before it. Logins:
    ~/.config/enroot/.credentials, apptainer registry login.
pattern = returned error code: 4\d\d|toomanyrequests|status code from registry 4\d\d
    |unauthorized: |manifest unknown
hides = container-not-started

[container-image-missing]
cues = could not open image |.sqsh|.sif
cause = The image of the container does not exist at this path on the node.
remedy = Put it on a disk that all nodes share, and give its full path.
pattern = could not open image (?P<address>[^\s:]{1,200}): .{0,300}no such file
    |No such file or directory: \S{1,200}\.(?:sqsh|sif)
hides = container-not-started

[container-gpu]
cues = nvidia-container-cli: |98-nvidia.sh exited
cause = The container does not get at the node's NVIDIA driver: it is not loaded, or not ready.
remedy = If other nodes work, leave this one out (--exclude=NODE) and tell the site; nvidia-smi on
    the node shows the driver. On a node without GPUs: export NVIDIA_VISIBLE_DEVICES=void
hides = container-not-started

[container-program-missing]
cues = executable file not found in |enroot-switchroot: failed to execute
cause = The program does not exist in the container.
remedy = Install it in the image, or mount the folder of its environment into the container
    (apptainer --bind, pyxis --container-mounts) and give its full path.
hides = container-not-started

[container-not-started]
cues = FATAL:  |container creation failed|couldn't start container|ailed to create
    |container start failed|enroot-
cause = The container did not start on this node; the lines beside this one say why.
remedy = Start it alone on this node: srun --nodelist=NODE -n 1 … Folders to mount have to exist on
    each node. If only some nodes fail, leave them out (--exclude) and tell the site.
pattern = FATAL:  |container creation failed|pyxis: couldn't start container
    |pyxis: container start failed|[Ff]ailed to create (?:user|mount) namespace
    |enroot-\w{1,20}: failed

[mpi-without-pmi]
cues = PMI support|PMIX ERROR|in file pmix|PMI2_|PMI_|MPI_Init
cause = The program uses MPI (mpi4py, Horovod), and its MPI does not understand how srun starts it.
remedy = srun --mpi=list shows what Slurm has: --mpi=pmix for Open MPI, --mpi=pmi2 for MPICH and
    Intel MPI. slurm_resolver needs no MPI: remove the import, if nothing else uses it.
pattern = not built with SLURM's PMI support|PMIX ERROR: (?:NOT-FOUND|UNREACHABLE|OUT-OF-RESOURCE)
    |OPAL ERROR: \w{1,20} in file pmix|PMI2?_\w{1,40} (?:failed to int|\[pmix_|returned)
    |Fatal error in P?MPI_Init

[pool-broken]
cues = BrokenProcessPool|terminated abruptly|exited unexpectedly
cause = A process that the program had started, such as one that reads data, has ended: it crashed,
    was killed for lack of memory, or a signal ended it.
remedy = sacct -j JOBID -o JobID,State,MaxRSS,ReqMem shows the memory. Start fewer such processes,
    or ask for more: --mem. If Slurm's signal came just before (--signal), the signal ended it.
pattern = BrokenProcessPool: |process pool was terminated abruptly|orker.{0,40} exited unexpectedly

[hdf5-no-locks]
cues = unable to lock file, errno =
cause = The file system on which this HDF5 file lies has no locks on this node.
remedy = export HDF5_USE_FILE_LOCKING=FALSE before srun. Let only one task write the file.
pattern = unable to lock file, errno = (?!11\b)\d

[hdf5-locked]
cues = unable to lock file, errno = 11|truncate a file which is already open|is already open for
cause = Another process has this HDF5 file open: several tasks write one file, or one reads what
    another writes.
remedy = Let one task write it, or give each task its own file. If all only read:
    export HDF5_USE_FILE_LOCKING=FALSE before srun
pattern = unable to lock file, errno = 11\b|truncate a file which is already open
    |file is already open for (?:write|read)

[numpy-version]
cues = compiled using NumPy 1.x|compiled against |ABI version|umpy.core.multiarray failed
    |_ARRAY_API not found|size changed, may indicate|NumPy 2.0 release|No module named 'numpy._core
cause = NumPy is older or newer than the packages that use it: installations are mixed, such as
    ~/.local, a container and modules, or NumPy was updated alone.
remedy = python -m pip check names the packages that do not fit. If the traceback has paths in
    ~/.local: export PYTHONNOUSERSITE=1 before srun. If it has those of modules: unset PYTHONPATH.
    Else install the versions that TensorFlow asks for: pip install 'numpy<2', for TensorFlow 2.17
    and earlier.
pattern = compiled using NumPy 1\.x cannot be run
    |module (?:was )?compiled against (?:API|ABI) version|numpy\.core\.multiarray failed to import
    |_ARRAY_API not found|numpy\.\w{1,20} size changed, may indicate binary incompatibility
    |removed in the NumPy 2\.0 release|No module named 'numpy\._core

[protobuf-version]
cues = Descriptors cannot|Protobuf Gencode|google.protobuf|'MessageFactory' object
cause = protobuf does not have the version with which TensorFlow, or another package, was made:
    installations are mixed, such as ~/.local, a container and modules, or it was updated alone.
remedy = python -m pip check names the packages that do not fit. If the traceback has paths in
    ~/.local: export PYTHONNOUSERSITE=1 before srun. If it has those of modules: unset PYTHONPATH.
    Else let pip choose: pip install --upgrade tensorflow protobuf
pattern = Descriptors cannot (?:not )?be created directly|incompatible Protobuf Gencode
    |cannot import name '\w{1,40}' from 'google\.protobuf
    |'MessageFactory' object has no attribute|No module named 'google\.protobuf

[display-library-missing]
cues = libGL.so|libgthread|libSM.so|libXext.so|libXrender.so|libEGL.so
cause = A package for pictures, most often OpenCV, needs a library for screens, which compute nodes
    do not have.
remedy = pip uninstall opencv-python opencv-contrib-python, then pip install opencv-python-headless
pattern = (?P<address>lib(?:GL|gthread-2\.0|SM|Xext|Xrender|EGL)\.so[\w.]{0,10}): cannot open shared

[library-missing]
cues = cannot open shared object file|GLIBCXX_|GLIBC_|CXXABI_
cause = A library on this node is missing, or older than the one that the package was built with.
remedy = In the batch file, load the modules with which the environment was made; a virtual
    environment also needs the module of its Python. If only some nodes lack the library, leave them
    out (--exclude) and tell the site.
pattern = (?<!dlerror): (?P<address>[\w./+-]{1,200}): cannot open shared object file
    |version .(?:GLIBC|GLIBCXX|CXXABI)_[\d.]{1,20}. not found

[symbol-missing]
cues = undefined symbol: |symbol lookup error: |relocation error:
cause = A library does not fit the one that it uses: installations are mixed, such as ~/.local, a
    module and a virtual environment, or a package was built for another TensorFlow.
remedy = Install the package that the line names for this TensorFlow, in the same environment.
    export PYTHONNOUSERSITE=1 before srun keeps ~/.local out; modules may set LD_LIBRARY_PATH and
    PYTHONPATH: unset them.

[static-tls]
cues = static TLS block
cause = The loader has no room for this library any more, as others were loaded before it; on
    aarch64, this is a known fault of libgomp and older versions of glibc.
remedy = Load it first: export LD_PRELOAD=FILE before srun, with the file in the message; or import
    its package before TensorFlow.

[library-unusable]
cues = failed to map segment|file too short|wrong ELF class|invalid ELF header
cause = The file of a library is not whole, is made for another processor, or lies on a disk that
    forbids executing (noexec).
remedy = Install the package again, on a node like this one; df -h and quota -s show whether the
    disk is full. findmnt -T FILE shows noexec: then install it on another disk.
pattern = failed to map segment from shared object|: file too short|wrong ELF class
    |invalid ELF header

[module-missing]
cues = No module named
cause = The Python of this task does not have the package: it is a different Python, or the package
    is not installed on that node.
remedy = Activate the environment in the batch file, before srun, and install the package there.
    srun python -c 'import sys; print(sys.prefix)' shows which Python each task runs.
pattern = (?:ModuleNotFound|Import)Error: No module named '(?P<address>[\w.]{1,100})'
    |python[\d.]{0,6}: No module named '?[\w.]{1,100}
"""
