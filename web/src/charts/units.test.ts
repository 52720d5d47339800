import { expect, test } from 'vitest'
import { axisText, BYTE_STEPS, readoutText, scaleOf } from './units'

const GIB = 2 ** 30

test('per cent are always drawn from 0 to 100', () => {
  expect(scaleOf('percent', 40, 45)).toEqual([0, 100])
  expect(scaleOf('percent', null, null)).toEqual([0, 100])
})

test('a scale holds what is to be drawn on it, with a little room above', () => {
  const [low, high] = scaleOf('watts', 100, 700)
  expect(low).toBe(0)
  expect(high).toBeGreaterThan(700)
  expect(scaleOf('watts', 0, 0)).toEqual([0, 1])
})

test('temperatures do not begin at zero, unless it is colder', () => {
  expect(scaleOf('celsius', 30, 60)).toEqual([20, 80])
  expect(scaleOf('celsius', 5, 95)).toEqual([5, 99])
})

test('an axis is short and says its unit', () => {
  expect([axisText(25, 'percent'), axisText(32 * GIB, 'bytes'), axisText(2 ** 41, 'bytes'), axisText(60, 'celsius'), axisText(20_000, 'watts')]).toEqual(['25%', '32G', '2T', '60°', '20 kW'])
  expect(axisText(150e6, 'bytes_per_second')).toBe('150M/s')
  expect([axisText(0, 'megahertz'), axisText(500, 'megahertz'), axisText(1250, 'megahertz'), axisText(2000, 'megahertz')]).toEqual(['0 MHz', '500 MHz', '1.25 GHz', '2 GHz'])
})

test('a readout never shows an unknown value as a number', () => {
  expect(readoutText(null, 'percent')).toBe('–')
  expect([readoutText(97.4, 'percent'), readoutText(2.25, 'gpus'), readoutText(0.5, 'share')]).toEqual(['97 %', '2.3', '50 %'])
  expect([readoutText(2792, 'watts'), readoutText(26_280, 'watts')]).toEqual(['2792 W', '26.3 kW'])
})

test('memory is divided by powers of two', () => {
  expect(BYTE_STEPS).toContain(32 * GIB)
  expect(BYTE_STEPS.every((step) => Number.isInteger(Math.log2(step)))).toBe(true)
})
