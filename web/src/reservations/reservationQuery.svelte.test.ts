import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { ReservationQuery } from './reservationQuery.svelte'
import { reservation } from './samples'

const answers: ((body: object, status?: number) => void)[] = []
const settle = async (): Promise<void> => void (await new Promise((done) => setTimeout(done)))

beforeEach(() => {
  answers.length = 0
  vi.stubGlobal('fetch', (_: string, { signal }: RequestInit) => new Promise<Response>((resolve, reject) => {
    signal?.addEventListener('abort', () => reject(new Error('called off')))
    answers.push((body, status = 200) => resolve(new Response(JSON.stringify(body), { status })))
  }))
})
afterEach(() => vi.unstubAllGlobals())

const told = (id: number) => ({ reservations: [reservation({ id })], time: 0, is_cut: false })

test('what is known of one time is not shown for another', async () => {
  const board = new ReservationQuery()
  board.show(0, 10)
  answers[0]?.(told(1))
  await settle()
  expect(board.reservations?.map(({ id }) => id)).toEqual([1])
  board.show(10, 20)
  void board.again()
  await settle()
  expect(board.reservations).toBeNull()
  answers[2]?.(told(2))
  await settle()
  expect(board.reservations?.map(({ id }) => id)).toEqual([2])
})

test('what was told stays while the hub does not answer, and that is said', async () => {
  const board = new ReservationQuery()
  board.show(0, 10)
  answers[0]?.(told(1))
  await settle()
  void board.again()
  answers[1]?.({ error: { message: 'no database' } }, 503)
  await settle()
  expect(board.reservations).toHaveLength(1)
  expect(board.refused?.text).toBe('no database.')
})
