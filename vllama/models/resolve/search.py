"""Searches the hub for a model: from a name to the repository and the files to fetch.

1. Formats are tried in the engines' order of preference. A repository's own files come first.
2. For GGUF, quantizations by others come next: the hub's list of children, filtered by name and
   size (`matching`), the maker's own first, then those of known quantizers. Usual names that the
   list lacks are tried as well. A quantization that the user named must be there.
3. A gated repository is taken only if this user may fetch it.
4. If nothing suits, the error says what there is and what would help.

Each repository that was considered leaves a `Candidate` with the reason for taking it or not.
Blocking; all requests go through `HuggingFace`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from vllama.base.errors import (
    AuthRequired,
    ModelNotFound,
    NoPlan,
    NotEnoughMemory,
    Offline,
    SourceError,
    VllamaError,
)
from vllama.base.spelling import find_similar
from vllama.models.names.ref import ModelRef
from vllama.models.names.variants import explain_left_out, group_ggufs
from vllama.models.resolve.candidates import (
    DISABLED,
    LISTED,
    TRIES,
    Candidate,
    explain_missing_variant,
    explain_missing_weights,
    find_quantized_safetensors,
    find_variant,
    make_no_variant_error,
    read_or_nothing,
)
from vllama.models.resolve.matching import (
    explain_name_mismatch,
    explain_size_mismatch,
    get_scheme,
    guess_gguf_names,
    rank_publisher,
)
from vllama.models.settings import HUB_ADDRESS
from vllama.models.types import Format, Listed, ModelInfo, Repository, Transient, Variant

if TYPE_CHECKING:
    from vllama.models.sources.hf import HuggingFace

_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The result of a search. `notes` tell the user whose files these are, and under which license.

    `shortage` is set if the variant does not fit into this machine's memory.
    """

    repository: Repository
    variant: Variant
    candidates: tuple[Candidate, ...]
    notes: tuple[str, ...] = ()
    shortage: NotEnoughMemory | None = None

    @property
    def ref(self) -> ModelRef:
        """The full name of the variant."""
        repository = self.repository
        return ModelRef.of_hub(repository.hub_id, self.variant.label, repository.branch)


ReadInfo = Callable[[Resolution], ModelInfo]
ListFamily = Callable[[], Sequence[tuple[str, float]]]


class Fits(Protocol):
    """Decides by memory; see `plan.form_choice`."""

    def choose(
        self, search: Iterator[Resolution], read: ReadInfo, family: ListFamily, *, named: bool
    ) -> Resolution:
        """Choose among what `search` yields, see there."""


def iterate_resolutions(
    hub: HuggingFace, ref: ModelRef, formats: Sequence[Format], *, named: bool = True
) -> Iterator[Resolution]:
    """Yield which files of which repository `ref` (a hub name) stands for, then the alternatives.

    Each is found when it is asked for. `named` False: the repository follows from a library name,
    so its absence is no error as long as others have its files. Raises ModelNotFound, NoPlan,
    AuthRequired, Offline, SourceError.
    """
    return _Search(hub, ref, tuple(formats), named).run()


class _Search:
    def __init__(
        self, hub: HuggingFace, ref: ModelRef, formats: tuple[Format, ...], named: bool
    ) -> None:
        self._hub, self._formats, self._named = hub, formats, named
        self._id, self._revision = ref.hub_id or ref.model, ref.revision
        self._tag = ref.tag if ref.has_tag else None
        self._seen: list[Candidate] = []
        self._fit: list[str] = []  # listed children worth opening, in order
        self._rest: tuple[Candidate, ...] = ()  # not opened, as an earlier one was taken
        self._closed: AuthRequired | None = None
        self._broken: str | None = None

    def run(self) -> Iterator[Resolution]:
        base, found = self._open_base(), False
        for format in self._formats:
            for taken in self._iterate_candidates(base, format):
                found = True
                yield self._make_resolution(base, taken)
                self._rest = ()
        if not found:
            raise self._make_error(base)

    def _iterate_candidates(self, base: Repository | None, format: Format) -> Iterator[Candidate]:
        own = self._take_own(base, format) if base else None
        if own is not None:
            yield own
        if self._revision is not None:  # others have no such revision
            return
        if format is Format.GGUF:
            # the name of a repository with GGUFs means those GGUFs
            has_gguf = base is not None and any(v.format is format for v in base.variants)
            if own is None and (self._closed is not None or not has_gguf):
                yield from self._iterate_children(base)
        elif own is not None and base is not None and get_scheme(base.hub_id) is None:
            for candidate in find_quantized_safetensors(self._hub, base):
                self._seen.append(candidate)
                if candidate.variant is not None:
                    yield candidate

    def _open_base(self) -> Repository | None:
        try:
            return self._hub.resolve(self._id, self._revision)
        except ModelNotFound as error:
            if self._named:
                raise _add_near_names(self._hub, self._id, error) from error
            self._refuse(self._id, "named", "no such repository")
            return None
        except (Offline, Transient):
            raise
        except SourceError as error:  # disabled or private: others may have its files
            if self._named:
                raise
            self._refuse(self._id, "named", error.message)
            return None

    def _take_own(self, base: Repository, format: Format) -> Candidate | None:
        """Take the repository's own files of that format, if this user may fetch them."""
        variant = find_variant(base, format, self._tag)
        if variant is None:
            return None
        try:
            self._hub.check_access(base)
        except AuthRequired as error:
            self._closed = self._closed or error
            self._refuse(base.hub_id, "named", error.message)
            return None
        if format is Format.SAFETENSORS:
            self._broken = explain_missing_weights(base, partial(self._hub.read_json, base))
            if self._broken is not None:
                self._refuse(base.hub_id, "named", self._broken)
                return None
        return self._take(base, variant, "named", "the repository's own files")

    def _iterate_children(self, base: Repository | None) -> Iterator[Candidate]:
        """Yield the servable forms of the model that others made."""
        base_id = base.hub_id if base else self._id
        tried = 0
        for hub_id, found, whose in self._iterate_forms(base_id, base):
            if tried == TRIES:
                self._refuse(hub_id, found, "enough others were checked before it")
                continue
            try:
                child = self._hub.resolve(hub_id)
                self._hub.check_access(child)
            except ModelNotFound:
                if found == LISTED:
                    self._refuse(hub_id, found, "it no longer exists")
                continue
            except (Offline, Transient):
                raise
            except SourceError as error:
                self._refuse(hub_id, found, error.message)
                continue
            tried += 1
            reason = self._explain_misfit(base, base_id, child)
            variant = find_variant(child, Format.GGUF, self._tag)
            if reason or variant is None:
                self._refuse(
                    child.hub_id, found, reason or explain_missing_variant(child, self._tag)
                )
                continue
            taken = self._take(child, variant, found, f"a GGUF version of {base_id} by {whose}")
            after = self._fit[self._fit.index(hub_id) + 1 if hub_id in self._fit else 0 :]
            why = f"{child.hub_id} is preferred"
            self._rest = tuple(Candidate(hub_id=i, found=LISTED, reason=why) for i in after)
            yield taken

    def _iterate_forms(
        self, base_id: str, base: Repository | None
    ) -> Iterator[tuple[str, str, str]]:
        """Yield (id, how found, publisher) in the order to try; note what its listing rules out."""
        listed = self._hub.children(base_id, "gguf")
        fit: list[Listed] = []
        for child in listed:
            reason = (
                self._explain_misfit(base, base_id, child) or (child.disabled and DISABLED) or None
            )
            if reason is None and child.paths and not group_ggufs(child.paths):
                reason = "; ".join(explain_left_out(child.paths).values()) or "it has no GGUF files"
            if reason is None:
                fit.append(child)
            else:
                self._refuse(child.hub_id, LISTED, reason)
        fit.sort(key=lambda c: (rank_publisher(base_id, c.hub_id), "-i1-" in c.hub_id))
        self._fit = [child.hub_id for child in fit]
        known = {child.hub_id.lower() for child in listed}
        names = [name for name in guess_gguf_names(base_id) if name.lower() not in known]
        # the maker's own repository may lack the tag by which the hub lists children
        if not (fit and rank_publisher(base_id, fit[0].hub_id) == 0) and "/" in base_id:
            own = [name for name in names if rank_publisher(base_id, name) == 0]
            names = [name for name in names if name not in own]
            yield from ((name, "by its name", "its publisher") for name in own)
        for child in fit:
            maker = rank_publisher(base_id, child.hub_id) == 0
            whose = "its publisher" if maker else child.hub_id.partition("/")[0]
            yield child.hub_id, LISTED, whose
        yield from ((name, "by its name", name.partition("/")[0]) for name in names)

    def _explain_misfit(
        self, base: Repository | None, base_id: str, child: Listed | Repository
    ) -> str | None:
        reason = explain_name_mismatch(base_id, child.hub_id)
        if reason or base is None or rank_publisher(base_id, child.hub_id) == 0:
            return reason  # the maker's own repository is trusted
        return explain_size_mismatch(
            base.parameter_count, child.parameter_count, base.pipeline, named=base_id
        )

    def _take(self, repository: Repository, variant: Variant, found: str, reason: str) -> Candidate:
        chosen = "as requested" if self._tag else "among the available ones"
        why = f"{reason}; {variant.quant} {chosen}" if variant.quant else reason
        taken, *_ = own = [
            Candidate(
                hub_id=repository.hub_id,
                found=found,
                reason=why if one == variant else f"{variant.label} was chosen",
                taken=one == variant,
                variant=one,
                repository=repository,
            )
            for one in (variant, *(one for one in repository.variants if one != variant))
        ]
        self._seen += own
        for path, problem in explain_left_out(repository.paths).items():
            self._refuse(repository.hub_id, found, f"{path}: {problem}")
        return taken

    def _refuse(self, hub_id: str, found: str, reason: str) -> None:
        self._seen.append(Candidate(hub_id=hub_id, found=found, reason=reason))

    def _make_resolution(self, base: Repository | None, taken: Candidate) -> Resolution:
        assert taken.repository is not None and taken.variant is not None
        notes: list[str] = []
        if base is None or taken.repository.hub_id != base.hub_id:
            notes.append(f"using {taken.hub_id} for {base.hub_id if base else self._id}")
            if base is not None and base.gated and not taken.repository.gated:
                name = f" ({base.license})" if base.license else ""
                notes.append(
                    f"license: {base.hub_id} is gated, {taken.hub_id} is not; "
                    f"the model's license{name} still applies: "
                    f"{HUB_ADDRESS}/{base.hub_id}"
                )
        return Resolution(
            repository=taken.repository,
            variant=taken.variant,
            candidates=(*self._seen, *self._rest),
            notes=tuple(notes),
        )

    def _make_error(self, base: Repository | None) -> VllamaError:
        if self._closed is not None:
            return self._closed
        if base is None:
            tag = f":{self._tag}" if self._tag else ""
            error: ModelNotFound | NoPlan = ModelNotFound(
                f"hf.co/{self._id}{tag}",
                message=f"cannot find '{self._id}' or a GGUF of it on the hub"
                + (f" with {self._tag}" if tag else ""),
                hint="specify a repository: vllama pull hf.co/org/repo",
            )
        elif self._broken is not None:
            error = NoPlan(
                f"cannot serve '{base.hub_id}': {self._broken}",
                hint="use another repository of the model, or an earlier revision of this one",
            )
        else:
            read = read_or_nothing(partial(self._hub.read_json, base))
            error = make_no_variant_error(base, self._tag, self._formats, read)
        looked = [f"{c.hub_id}: {c.reason}" for c in self._seen if c.found != "named"]
        if looked:
            more = f" and {len(looked) - _SHOWN} more" if len(looked) > _SHOWN else ""
            error.hint = f"{error.hint}; rejected: {'; '.join(looked[:_SHOWN])}{more}"
        return error


def _add_near_names(hub: HuggingFace, hub_id: str, error: ModelNotFound) -> ModelNotFound:
    """Suggest similar names, if the hub knows some."""
    org, _, name = hub_id.rpartition("/")
    words = [word for word in (name, name.split("-")[0], org) if word]
    found: list[str] = []
    for word in dict.fromkeys(words):
        try:
            found += hub.search(word, 20)
        except VllamaError:  # the first error is the one to report
            break
        if found:
            break
    near = find_similar(hub_id, found)
    if not near:
        return error
    names = " or ".join(near)
    return ModelNotFound(
        error.name, message=error.message, hint=f"did you mean {names}? Otherwise {error.hint}"
    )
