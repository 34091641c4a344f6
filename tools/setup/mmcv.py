"""Build mmcv from its source release, the fast way, and keep the wheel.

Most of the time of a plain build goes into reading torch's headers once for each of 78 files; precompiled they are
read once. The wheel is kept outside the repository, so that the next clone needs no build at all.
"""
from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

from tools.setup import console
from tools.setup.ops import Torch, build_environment, estimate_s

TRY_OPS = """
import torch
from mmcv.ops import RoIAlign, get_compiling_cuda_version, nms
device = 'cuda' if {cuda} else 'cpu'
boxes = torch.tensor([[0., 0., 9., 9.], [0., 0., 9., 8.], [20., 20., 29., 29.]], device=device)
assert nms(boxes, torch.tensor([.9, .8, .7], device=device), .5)[1].tolist() == [0, 2]
RoIAlign(2)(torch.ones(1, 1, 8, 8, device=device), torch.tensor([[0., 0., 0., 4., 4.]], device=device))
"""
TRY_NONE = 'import mmcv, mmcv.transforms'


class MMCVBuild:
    """One mmcv release for one environment.

    Args:
        python: The environment's Python.
        requirement: Such as ``onedl-mmcv==2.3.6``.
        level: Which ops, one of ``ops.LEVELS``.
        torch: The torch in the environment.
        cache: Folder of the finished wheel.
        log: Where the commands' output goes.
        env: Environment variables of every command.
    """

    def __init__(self, python: Path, requirement: str, level: str, torch: Torch, cache: Path, log: Path,
                 env: Mapping[str, str]):
        self.python, self.requirement, self.level, self.torch = str(python), requirement, level, torch
        self.cache, self.log, self.env = cache, log, env
        self.work = python.parent.parent / 'build-mmcv'

    def installed_works(self) -> bool:
        """Whether the environment's mmcv is the wanted release and its ops give the right answer."""
        version = self.requirement.split('==')[1]
        code = f'import mmcv; assert mmcv.__version__ == {version!r}\n'
        code += TRY_NONE if self.level == 'none' else TRY_OPS.format(cuda=self.level == 'cuda' and self._gpu_here())
        if self.level == 'cuda':
            code += '\nassert get_compiling_cuda_version() != "not available"'
        return self._run([self.python, '-c', code])

    def install(self, wheel: Path) -> bool:
        """Install a wheel over whatever mmcv is there; whether it then works."""
        command = [*self._pip('install'), '--no-deps', '--force-reinstall', str(wheel)]
        return self._run(command) and self.installed_works()

    def cached(self) -> Path | None:
        """The kept wheel."""
        return next(iter(sorted(self.cache.glob('*.whl'))), None)

    def build(self, jobs: int) -> Path:
        """Build the wheel and keep it; an interrupted build goes on where it stopped."""
        mark = self.work / 'made-for'
        if not mark.is_file() or mark.read_text() != self.cache.name:
            shutil.rmtree(self.work, ignore_errors=True)
        source = self._source()
        mark.write_text(self.cache.name)
        header = self._precompile(source) if self.level == 'cpu' else None
        wheel = self._wheel(source, jobs, header)
        if wheel is None and header is not None:
            console.say("      the build with torch's headers precompiled failed, so it starts again without (slow)")
            shutil.rmtree(source / 'build', ignore_errors=True)
            wheel = self._wheel(source, jobs, None)
        if wheel is None:
            raise console.SetupError(f'mmcv did not build; the end of {self.log}:\n{console.tail(self.log)}')
        self.cache.mkdir(parents=True, exist_ok=True)
        arriving = self.cache / f'{wheel.name}.{os.getpid()}'  # the cache may lie on another disk: copy, then rename
        shutil.copyfile(wheel, arriving)
        os.replace(arriving, self.cache / wheel.name)
        return self.cache / wheel.name

    def clean(self) -> None:
        """Remove the build folder."""
        shutil.rmtree(self.work, ignore_errors=True)

    def _source(self) -> Path:
        """The unpacked source release."""
        source = self.work / 'source'
        if source.is_dir():
            return source
        download, unpacked = self.work / 'download', self.work / 'unpacked'
        for folder in (download, unpacked):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        console.say('      downloading the source')
        if not self._run([*self._pip('download'), '--no-deps', '--no-binary', ':all:', '--no-build-isolation',
                          '-d', str(download), self.requirement]):
            raise console.SetupError(f'{self.requirement} could not be downloaded; the end of {self.log}:\n'
                                     f'{console.tail(self.log)}')
        with tarfile.open(next(download.iterdir())) as archive:
            archive.extractall(unpacked)
        os.replace(next(unpacked.iterdir()), source)
        return source

    def _precompile(self, source: Path) -> Path | None:
        """Compile torch's headers, as mmcv includes them, once; None if this compiler does not do it."""
        common = source / 'mmcv/ops/csrc/common'
        header = self.work / 'header' / 'pytorch_cpp_helper.hpp'
        compiled = header.with_name(header.name + '.gch')
        if compiled.is_file():
            return header
        header.parent.mkdir(exist_ok=True)
        partial = compiled.with_suffix('.part')
        console.say("      compiling torch's headers once, about 20 s")
        # The flags and macros have to be those of the build, or the compiler will not use the result.
        script = ('import shlex, subprocess, sys, sysconfig\n'
                  'from torch.utils.cpp_extension import get_cxx_compiler, include_paths\n'
                  'paths = [sys.argv[3], *include_paths(), sysconfig.get_paths()["include"]]\n'
                  'sys.exit(subprocess.call([*shlex.split(get_cxx_compiler()), "-x", "c++-header", "-O1", "-g0", "-w", '
                  '"-fPIC", "-std=c++17", "-DTORCH_API_INCLUDE_EXTENSION_H", "-DTORCH_EXTENSION_NAME=_ext", '
                  '*("-I" + path for path in paths), sys.argv[1], "-o", sys.argv[2]]))')
        command = [self.python, '-c', script, str(common / header.name), str(partial), str(common)]
        if not self._run(command, env={**self.env, 'CUDA_VISIBLE_DEVICES': ''}):
            console.say("      this compiler does not precompile torch's headers, so the build will be slow")
            return None
        os.replace(partial, compiled)
        return header

    def _wheel(self, source: Path, jobs: int, header: Path | None) -> Path | None:
        """Run the build; the wheel, or None if it failed."""
        csrc = source / 'mmcv/ops/csrc/pytorch'
        files = [*csrc.glob('*.cpp'), *csrc.glob('cpu/*.cpp')]
        if self.level == 'cuda':
            files += [*csrc.glob('cuda/*.cu'), *csrc.glob('cuda/*.cpp')]

        def compiled() -> int:
            return sum(1 for _ in source.glob('build/temp*/**/*.o'))

        before = compiled()

        def progress(seconds: float) -> str:
            return console.remaining(compiled(), len(files), seconds, before)

        env = {**self.env, **build_environment(self.level, self.torch, jobs, header)}
        seconds = estimate_s(self.level, jobs, header is not None)
        about = f', about {console.duration(seconds)}' if seconds else ''
        console.say(f'      compiling {len(files)} files, {jobs} at a time{about}' if self.level != 'none' else
                    '      packing mmcv without ops')
        out = self.work / 'wheel'
        shutil.rmtree(out, ignore_errors=True)
        # Isolated from torch, mmcv leaves its ops out; nothing else tells every release to.
        isolation = [] if self.level == 'none' else ['--no-build-isolation']
        ok = console.run([*self._pip('wheel'), '-v', '--no-deps', *isolation, '-w', str(out), str(source)],
                         self.log, env, progress if self.level != 'none' else None)
        return next(out.glob('*.whl'), None) if ok else None

    def _gpu_here(self) -> bool:
        return self._run([self.python, '-c', 'import sys, torch; sys.exit(not torch.cuda.is_available())'])

    def _pip(self, verb: str) -> list[str]:
        return [self.python, '-m', 'pip', verb, '--disable-pip-version-check', '--no-input']

    def _run(self, command: list[str], env: Mapping[str, str] | None = None) -> bool:
        return console.run(command, self.log, env or self.env)
