from gpudeck.client.asynchronous import AsyncClient as AsyncClient
from gpudeck.client.client import Client as Client
from gpudeck.client.errors import Busy as Busy
from gpudeck.client.errors import Forbidden as Forbidden
from gpudeck.client.errors import ImpossibleRequest as ImpossibleRequest
from gpudeck.client.errors import NotFound as NotFound
from gpudeck.client.errors import NotLoggedIn as NotLoggedIn
from gpudeck.client.errors import ReservationTaken as ReservationTaken
from gpudeck.client.errors import WaitTimeout as WaitTimeout
from gpudeck.local import NotFree as NotFree
from gpudeck.local import here as here
from gpudeck.model.errors import GpudeckError as GpudeckError
from gpudeck.model.errors import Unreachable as Unreachable
from gpudeck.model.errors import UsageError as UsageError

__version__: str
