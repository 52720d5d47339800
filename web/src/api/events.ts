/** What happened, and the hub about itself. */
import { addressOf, request, type Answer } from './request'
import type { components } from './schema'

export type HubEvent = components['schemas']['Event']
export type Severity = HubEvent['severity']
export type EventPage = components['schemas']['EventList']
export type About = components['schemas']['About']

export function readEvents(query: Record<string, string>, signal?: AbortSignal): Promise<Answer<EventPage>> {
  return request('get', '/api/v1/events', { query, signal })
}

/** The same events as CSV. */
export function eventSheet(query: Record<string, string>): string {
  return addressOf('/api/v1/events', { query: { ...query, format: 'csv' } })
}

export function readAbout(signal?: AbortSignal): Promise<Answer<About>> {
  return request('get', '/api/v1/about', { signal })
}
