/** Adding and removing hosts. */
import { ask, type Answer } from './ask'
import type { AddedHosts, HostOrigin, NewHost } from './types'

export function addHost(host: NewHost): Promise<Answer<AddedHosts>> {
  return ask('api/v1/hosts', 'POST', host)
}

/** By id: two hosts may share a name. */
export function removeHost(id: string): Promise<Answer<{ name: string }>> {
  return ask(`api/v1/hosts/${encodeURIComponent(id)}`, 'DELETE')
}

export const listOrigins = (): Promise<Answer<{ hosts: HostOrigin[] }>> => ask('api/v1/host-origins')
