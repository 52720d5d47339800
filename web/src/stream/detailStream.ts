/** The hosts in view of a large fleet, in full: a stream of some hosts, which is replaced when others come into view. */
import type { FleetStream, RawEvent, RawListener } from './fleetStream'

export type Open = (url: string, listener: RawListener) => Pick<FleetStream, 'start' | 'stop'>

/** The hub takes so many, and proxies refuse addresses of more than 8 kB. */
const MOST_HOSTS = 200
const LONGEST_ADDRESS = 7000

export class DetailStream {
  private stream: ReturnType<Open> | null = null

  constructor(
    private readonly listener: (event: RawEvent) => void,
    private readonly open: Open,
  ) {}

  /** Opens the stream anew, so that it begins with a snapshot. `url` is that of the overview; the first hosts count most. */
  follow(url: string, hosts: Iterable<string>): void {
    this.stop()
    const address = addressOf(url, new Set(hosts))
    if (address === null) return
    // What is wrong with the hub is told by the other stream.
    this.stream = this.open(address, { event: this.listener, error: () => {} })
    this.stream.start()
  }

  stop(): void {
    this.stream?.stop()
    this.stream = null
  }
}

function addressOf(url: string, hosts: ReadonlySet<string>): string | null {
  let address = `${url.split('?', 1)[0]}?hosts=`
  let count = 0
  for (const id of hosts) {
    const next = `${count === 0 ? '' : ','}${encodeURIComponent(id)}`
    if (count === MOST_HOSTS || address.length + next.length > LONGEST_ADDRESS) break
    address += next
    count += 1
  }
  return count === 0 ? null : address
}
