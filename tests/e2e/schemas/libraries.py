"""JSON schemas of pydantic and msgspec, for `make.py`: printed as JSON."""

from __future__ import annotations

import datetime
import decimal
import enum
import importlib.metadata
import ipaddress
import json
import pathlib
import uuid
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import msgspec
import pydantic as p
import typing_extensions

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 9


class Strings(p.BaseModel):
    url: p.HttpUrl
    any_url: p.AnyUrl | None = None
    ident: uuid.UUID
    at: datetime.datetime
    day: datetime.date
    clock: datetime.time
    long: datetime.timedelta
    four: ipaddress.IPv4Address
    six: ipaddress.IPv6Address
    net: ipaddress.IPv4Network
    path: pathlib.Path
    raw: bytes
    secret: p.SecretStr
    short: p.constr(min_length=2, max_length=8, strip_whitespace=True)  # type: ignore[valid-type]
    coded: p.constr(pattern=r"^[A-Z]{2}-\d{3}$")  # type: ignore[valid-type]
    slug: Annotated[str, p.StringConstraints(pattern=r"^[a-z0-9]+(?:-[a-z0-9]+)*$")]
    text: p.Json[Any]
    packed: p.Base64Str


class Url(p.BaseModel):
    url: p.HttpUrl


class Numbers(p.BaseModel):
    price: decimal.Decimal
    exact: p.condecimal(max_digits=6, decimal_places=2)  # type: ignore[valid-type]
    share: Annotated[float, p.Field(ge=0, le=1)]
    above: p.PositiveInt
    below: p.NegativeFloat
    step: p.conint(multiple_of=5, ge=0, lt=100)  # type: ignore[valid-type]
    level: Level
    flag: bool | None = None
    size: p.ByteSize


class Lists(p.BaseModel):
    tags: set[str]
    frozen: frozenset[int]
    few: p.conlist(int, min_length=1, max_length=3)  # type: ignore[valid-type]
    pair: tuple[int, str]
    many: tuple[float, ...]
    either: list[int | str]
    table: dict[str, list[int]]
    keyed: dict[int, str]
    by_color: dict[Color, int]
    by_pattern: dict[Annotated[str, p.StringConstraints(pattern=r"^x-")], int]


class Cat(p.BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(p.BaseModel):
    kind: Literal["dog", "wolf"]
    name: str


class Pets(p.BaseModel):
    pet: Annotated[Cat | Dog, p.Field(discriminator="kind")]
    others: list[Annotated[Cat | Dog, p.Field(discriminator="kind")]]
    loose: Cat | Dog | None = None


class Page(p.BaseModel, Generic[T]):
    items: list[T]
    following: str | None = None


class Node(p.BaseModel):
    value: int
    children: list[Node] = []
    parent: Node | None = None


class Strict(p.BaseModel):
    model_config = p.ConfigDict(extra="forbid", title="S")
    first: str = p.Field(alias="firstName")
    color: Color = Color.RED
    const: Literal[1] = 1
    mixed: Literal["a", 1, None, True]


class Open(p.BaseModel):
    model_config = p.ConfigDict(extra="allow")
    known: int


class Anything(p.BaseModel):
    value: Any
    data: object
    mapping: dict[str, Any]
    items: list[Any]


class Root(p.RootModel[list[Cat]]):
    pass


class Place(typing_extensions.TypedDict, total=False):
    lat: typing_extensions.Required[float]
    lon: typing_extensions.Required[float]
    name: str


class Point(NamedTuple):
    x: int
    y: int = 0


class Typed(p.BaseModel):
    place: Place
    point: Point


PYDANTIC = (Strings, Url, Numbers, Lists, Pets, Page[Cat], Page[int], Node, Strict, Open, Anything,
            Root, Typed)  # fmt: skip


class MCat(msgspec.Struct, tag="cat"):
    lives: int


class MDog(msgspec.Struct, tag="dog", forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=9)]


class MPoint(msgspec.Struct, array_like=True):
    x: float
    y: float
    label: str = ""


class MTree(msgspec.Struct):
    left: MTree | None = None
    right: MTree | None = None


class MAll(msgspec.Struct, rename="camel"):
    some_url: Annotated[str, msgspec.Meta(pattern="^https?://")]
    at_time: datetime.datetime
    how_long: datetime.timedelta
    price: decimal.Decimal
    data: bytes
    ident: uuid.UUID
    tags: set[str]
    pair: tuple[int, str]
    many: Annotated[list[int], msgspec.Meta(min_length=1, max_length=4)]
    share: Annotated[float, msgspec.Meta(ge=0, lt=1)]
    step: Annotated[int, msgspec.Meta(multiple_of=4)]
    by_name: dict[str, int]
    by_number: dict[int, str]
    color: Color
    few: Annotated[dict[str, int], msgspec.Meta(max_length=2)]
    raw: msgspec.Raw


MSGSPEC = (MCat | MDog, MPoint, MTree, MAll, list[MPoint], dict[str, MCat | MDog])

if __name__ == "__main__":
    found = {}
    version = importlib.metadata.version
    for one in PYDANTIC:
        for mode in ("validation", "serialization"):
            found[f"pydantic {version('pydantic')}: {one.__name__} {mode}"] = one.model_json_schema(
                mode=mode
            )
    for number, kind in enumerate(MSGSPEC):
        name = getattr(kind, "__name__", f"{number}")
        found[f"msgspec {version('msgspec')}: {name}"] = msgspec.json.schema(kind)
    print(json.dumps(found))
